"""Which pass of ONNX Runtime's optimiser is at fault: its passes are switched off by halves, and the file run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

PASSES: tuple[str, ...] = (
    "AttentionFusion", "Avx2WeightS8ToU8Transformer", "BiasDropoutFusion", "BiasGeluFusion", "BiasSkipLayerNormFusion",
    "BiasSoftmaxFusion", "CastChainElimination", "CastElimination", "ClipQuantFusion",
    "CommonSubexpressionElimination", "ConstantFolding", "ConstantSharing", "ConvActivationFusion",
    "ConvAddActivationFusion", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "DQMatMulNBitsFusion",
    "DivMulFusion", "DoubleQDQPairsRemover", "DynamicQuantizeMatMulFusion", "EliminateDropout", "EliminateIdentity",
    "EliminateSlice", "EmbedLayerNormFusion", "EnsureUniqueDQForNodeUnit", "ExpandElimination", "FastGeluFusion",
    "FuseReluClip", "GatherSliceToSplitFusion", "GatherToSliceFusion", "GeluFusionL1", "GeluFusionL2",
    "GemmActivationFusion", "GemmSumFusion", "GemmTransposeFusion", "GqaValueLayoutTransformer",
    "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion", "IsInfReduceSumFusion", "LabelEncoderFusion",
    "LayerNormFusionL1", "LayerNormFusionL2", "MatMulActivationFusion", "MatMulAddFusion",
    "MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "MatMulNBitsMlpFusion", "MatMulNBitsQkvFusion",
    "MatMulScaleFusion", "MatMul_BatchNormalization_Fusion", "MatmulTransposeFusion", "NchwcTransformer",
    "NhwcTransformer", "NoopElimination", "NotWhereFusion", "Pad_Fusion", "PreShapeNodeElimination",
    "PropagateCastOps", "QDQFinalCleanupTransformer", "QDQPropagationTransformer", "QDQS8ToU8Transformer",
    "QDQSelectorActionTransformer", "QuickGeluFusion", "ReluQuantFusion", "RemoveDuplicateCastTransformer",
    "ReshapeFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
    "SliceConcatToSpaceToDepthFusion", "TransposeOptimizer", "UnsqueezeElimination",
)  # fmt: skip
"""Names of ONNX Runtime 1.24 to 1.31's passes, as `disabled_optimizers` takes them; it ignores those it does not have."""


def guilty_pass(is_right: Callable[[Sequence[str]], bool]) -> str:
    """Return the pass without which the result is right, "" if it is none of those known or takes more than one.

    Args:
        is_right: whether the result is right with these passes switched off.
    """
    suspects: Sequence[str] = PASSES
    if not is_right(suspects):
        return ""
    while len(suspects) > 1:
        half = len(suspects) // 2
        first, second = suspects[:half], suspects[half:]
        if is_right(first):
            suspects = first
        elif is_right(second):
            suspects = second
        else:  # it takes two that lie in different halves
            return ""
    return suspects[0]
