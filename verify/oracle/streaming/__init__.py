"""Softmax attention in float64 with bound, deviation and scale direction, in memory linear in the number of keys.

The formulas are those of `oracle.attention`, the dense oracle, and of NUMERICS.md sections 1 and 2, evaluated for a
panel of query rows at a time: pass 1 (`scores`) forms the panel's logits in tiles of keys and finds their maximum,
pass 2 (`sums`) goes over the tiles again and reduces. Where every logit is small, weights need no shift by the maximum,
and pass 1 forms them and p V while a tile is in the cache; otherwise pass 2 does (`weights`).

Logits, weights and p V are float64. The magnitudes (W, p |V|, p V^2) only enter a bound, and sigma and the direction
are wanted to a few digits: they are formed in float32, those of the bound inflated by what float32 may have lost of a
sum of positive terms. Where that would loosen the bound, p V^2 of saturated rows, and for operands that float32 cannot
hold, poisoned keys for example, float64 takes its place.

Two differences from the dense oracle: a row under one huge finite number is uniform whatever the policy of empty rows,
and there is no bound where the normaliser may be off by all of itself (G >= 1).
"""

from onnx_attest.verify.oracle.streaming.attention import Attended, OperandErrors, attend

__all__ = ["Attended", "OperandErrors", "attend"]
