"""The finding codes: what each means, why it matters, an example, and what to do. A code never changes its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnx_attest.errors import UsageError
from onnx_attest.verify.records import Neighbour

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Code:
    """One finding code.

    Attributes:
        title: what it means, in a line.
        why: why it matters.
        example: the smallest case that shows it.
        remedy: what to do next; a finding carries it as its next step.
    """

    code: str
    severity: Severity
    title: str
    why: str
    example: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    """A code with its evidence; where it was found is added when it becomes a record.

    Attributes:
        blame: the party at fault, as far as the comparisons tell: exporter, fusion, optimiser, compiler, kernel, precision, module, "".
        around: the node with those beside it in the file, see `cell.Subject.located`.
    """

    code: str
    message: str
    blame: str = ""
    node: str = ""
    around: tuple[Neighbour, ...] = ()

    @property
    def severity(self) -> Severity:
        """The severity of the code."""
        return CODES[self.code].severity

    @property
    def next_step(self) -> str:
        """The remedy of the code."""
        return CODES[self.code].remedy


def finding(code: str, message: str, *, blame: str = "", node: str = "") -> Finding:
    """Return a finding of a code that exists."""
    assert code in CODES, code
    return Finding(code, message, blame, node)


def explain(code: str) -> Code:
    """Return the page of a code.

    Raises:
        UsageError: an unknown code; the message lists those there are.
    """
    if code.upper() not in CODES:
        raise UsageError(f"unknown code {code!r}; there are {', '.join(CODES)}")
    return CODES[code.upper()]


def page(code: Code) -> str:
    """Return the page of a code as text."""
    return (
        f"{code.code} ({code.severity}): {code.title}\n\n{code.why}\n\nExample: {code.example}\n\n"
        f"Remedy: {code.remedy}"
    )


def markdown() -> str:
    """Return docs/findings.md: every code on one page."""
    pages = (
        f"## {code.code} {code.title}\n\n*{code.severity}*. {code.why}\n\n**Example.** {code.example}\n\n"
        f"**Remedy.** {code.remedy}\n"
        for code in CODES.values()
    )
    intro = (
        "# Finding codes\n\n"
        "`onnx-attest explain CODE` prints the same. OA1xx export, OA2xx placement, OA3xx numerics, OA4xx softmax, "
        "OA5xx relations, OA6xx optimiser, OA7xx latency, OA8xx integrity and input. A code never changes its "
        "meaning.\n"
    )
    return "\n".join((intro, *pages))


_TABLE = (
    Code(
        "OA101", "error", "The opset asked for is not the opset of the file",
        "torch's exporter cannot go below opset 18. Asked for less it writes 18 and says so in a log line only; a "
        "runtime that takes 13 at most then refuses the file, on the target.",
        "torch.onnx.export(module, args, dynamo=True, opset_version=13) gives opset 18.",
        "Ask for opset 18 or later, or convert the file with onnx.version_converter and verify the result.",
    ),
    Code(
        "OA102", "error", "An axis that was requested dynamic is a number in the file",
        "The file works at the traced size and at no other.",
        "dynamic={'x': {1: 'seq_len'}} was asked, and the input x of the file is [batch, 128, 64].",
        "Look for a Python int made from a shape in forward (x.shape[1] used as a list length or a range), and export again.",
    ),
    Code(
        "OA103", "warning", "An axis has another name, or is left open where a size was fixed",
        "Equal names are how a file says that two axes have the same size; a caller who reads them is misled.",
        "An output axis asked for as seq_len is called s27 in the file.",
        "Name the axis in dynamic_shapes, or adapt the contract if the file is right.",
    ),
    Code(
        "OA104", "error", "An input or output was dropped, renamed or has another rank",
        "A dropped input is fed by the caller and ignored, or refused by the runtime.",
        "forward takes a mask that does not reach the result; the file has no input of that name.",
        "Use the input in forward, or take it out of the contract.",
    ),
    Code(
        "OA105", "error", "The exporter failed",
        "There is no file, so nothing was verified for this variant.",
        "scaled_dot_product_attention on tensors with three axes: only 4D query, key, and value are supported.",
        "Read the message: it is the exporter's innermost error. onnx-attest export repeats it alone.",
    ),
    Code(
        "OA106", "error", "The module differs from itself on two runs",
        "A module in training mode drops at random; whatever is compared with it differs as well, and no fault of the "
        "file can be told from that.",
        "nn.TransformerEncoderLayer(32, 4, dropout=0.5) without .eval().",
        "Call module.eval() before the export, or seed what is random inside the module.",
    ),
    Code(
        "OA108", "error", "The file does not compute what the module computes",
        "All ONNX runtimes agree with each other and not with the module: they run the same wrong graph. Agreement of "
        "runtimes proves nothing then.",
        "A boolean mask with an empty row at opset 18: torch gives 0, every runtime the mean of V "
        "(microsoft/onnxscript#2654).",
        "Make sure that the file belongs to this module. If so, export at another opset or write the operation "
        "differently, and report it to the exporter.",
    ),
    Code(
        "OA109", "error", "Neither the module nor the file computes its specification",
        "Module and file agree, and both differ from what the contract says the model is.",
        "Attention without the division by sqrt(d_k), held against the chapter's formula.",
        "Correct the module, or the specification in its contract.",
    ),
    Code(
        "OA110", "warning", "The file was not held against a module",
        "Runtimes were compared with the file's own graph: that they compute it rightly is shown, that it is the right "
        "graph is not.",
        "A bare .onnx file, or one whose module cannot be built here.",
        "Name the module with --against, or give the contract a specification.",
    ),
    Code(
        "OA111", "error", "The file's graph is not the module, both in float64",
        "No rounding and no runtime is between them: what differs was changed by the exporter, or the file is another "
        "module's. A scale that is off by 1e-9 is found, and its size told.",
        "A boolean mask with an empty row at opset 18: the module gives 0, the graph the mean of V "
        "(microsoft/onnxscript#2654).",
        "Look at the node, if one is named. If the file belongs to this module, export at opset 23 or later, where attention "
        "is one operator (of a row without any key below it: microsoft/onnxscript#2654), or report it to the exporter.",
    ),
    Code(
        "OA112", "error", "A constant of the file is not the module's, rounded",
        "The module was exported once more in float64; each constant of the file has to be that one, rounded to the file's "
        "dtype.",
        "A scale of 0.2237 where 1/sqrt(20) rounds to 0.22360680.",
        "If the module has other weights than the file (trained since, or drawn anew by its factory), give those. Else export "
        "again; if it stays, the exporter computes the constant in a format that is too short.",
    ),
    Code(
        "OA113", "note", "The module could not be exported in float64",
        "Constants of the file are then taken with the rounding of its dtype, and smaller errors in them stay unseen.",
        "A module that creates tensors of dtype torch.float32 and multiplies them with its input.",
        "Create tensors in the dtype of the input.",
    ),
    Code(
        "OA114", "error", "The file casts to a shorter format where the module does not",
        "A value that goes through float16 or bfloat16 on the way loses its digits, whatever computes the rest.",
        "Cast to float16 and back, put behind a MatMul by a conversion tool.",
        "Look at the node named: export again, or find the tool that put it there.",
    ),
    Code(
        "OA115", "note", "The file is written otherwise than the module's export in float64",
        "The file comes from another exporter, or was edited or optimised. Constants without a counterpart are taken with "
        "four roundings of the file's dtype, so a smaller fault in one of them stays unseen.",
        "A file of torch.onnx.export(dynamo=False), verified with --against.",
        "Nothing, if that is what the file is.",
    ),
    Code(
        "OA117", "error", "The file does not compute what the file it was made from computes",
        "Both graphs were evaluated in float64, and differ by more than rounding explains: no runtime takes part, so what "
        "fused or converted the file is at fault.",
        "A fused attention that keeps of a mask only how many keys it has: right for right padding, wrong for holes.",
        "Leave that fusion out, or give the tool inputs that it is made for; verify again --against the original.",
    ),
    Code(
        "OA116", "warning", "The module is another function in float64",
        "In the file's dtype the module gives what the file does, in float64 something else: it asks for the dtype of its "
        "input. The exporter cannot be judged by it; the runtimes are.",
        "x / sqrt(mean(x * x) + torch.finfo(x.dtype).eps).",
        "Use a number in place of what depends on the dtype, to have the export checked.",
    ),
    Code(
        "OA118", "warning", "An attention's mask has one row for all queries",
        "By the standard such a mask broadcasts; ONNX Runtime 1.24 to 1.31 opens the file and refuses it when it runs. "
        "nn.MultiheadAttention with a key_padding_mask and need_weights=False is exported like that.",
        "Attention of opset 23 with a mask of shape (batch, 1, 1, keys).",
        "Export at opset 22 or below, which writes the attention out, or expand the mask to (batch, 1, queries, keys).",
    ),
    Code(
        "OA119", "warning", "An output has another shape than the file declares",
        "Whoever reads the file's signature, a converter or a serving tool, makes room for what it says; runtimes give "
        "what the graph computes, with a line in their log at most.",
        "y is declared as float[N, 9], and the graph gives (3, 8).",
        "Export again, or correct the declaration: onnx.shape_inference.infer_shapes(strict_mode=True) says where.",
    ),
    Code(
        "OA120", "warning", "An attention's mask has a rank that runtimes refuse",
        "Opsets 23 and 24 take masks of two to four axes that broadcast to (batch, heads, queries, keys), later ones of "
        "one as well; ONNX Runtime opens a file with others and refuses it when it runs.",
        "Attention of opset 23 with a mask of shape (keys).",
        "Unsqueeze the mask to (queries, keys) or (batch, 1, queries, keys).",
    ),
    Code(
        "OA121", "error", "A constant holds the size of an axis that is open",
        "The file takes one size, that which the module was traced with, and fails or answers wrongly at any other "
        "(pytorch/pytorch#120075, #122321).",
        "Reshape of (batch, seq, 45) by the constant (2, 7, 5, 9).",
        "In the module, take sizes from tensors (x.shape[1]) and not from numbers that were computed before, and export "
        "with dynamo=True.",
    ),
    Code(
        "OA201", "note", "A runtime was not used",
        "What was not run was not verified; the rows say skipped, and never passed.",
        "ort-cuda on a machine without CUDA libraries: libcublasLt.so.13 cannot be opened.",
        "Do what the reason says: give or install what it names, or run on a machine that has it; onnx-attest doctor shows "
        "each runtime.",
    ),
    Code(
        "OA202", "error", "The session runs elsewhere than asked",
        "ONNX Runtime gives a CPU session without an exception when a provider fails to start; its numbers and its "
        "speed would be reported under the wrong name.",
        "InferenceSession(file, providers=['CUDAExecutionProvider']) whose get_providers() is ['CPUExecutionProvider'].",
        "Run onnx-attest doctor for the loader's reason; install the provider's libraries.",
    ),
    Code(
        "OA203", "note", "Some nodes run on another provider than asked",
        "Each change of provider copies tensors; the arithmetic of those nodes is the other provider's.",
        "Shape computations that ORT places on the CPU beside a CUDA session.",
        "Look at nodes_by_provider in the records; a large share says that the provider lacks kernels.",
    ),
    Code(
        "OA204", "warning", "Floating-point work runs on another provider than asked",
        "What was verified and timed under the provider's name is in part another provider's work. Arithmetic on shapes "
        "is left out of this: ONNX Runtime keeps it on the CPU on purpose. Where the runtime is required, the run "
        "proves nothing of it.",
        "A Det between two Exp on a plugin provider that has no Det: the CPU provider computes it.",
        "Look at the nodes named: the provider lacks a kernel for their operator or dtype.",
    ),
    Code(
        "OA205", "error", "A required runtime ran a part of the file only",
        "--require says that a verdict without this runtime is worth nothing, and another provider computed some of it.",
        "--require ort-nxrt on a file with a Det.",
        "See OA204 for the nodes; leave out --require if the mixture is what you deploy.",
    ),
    Code(
        "OA301", "error", "An output is farther from the exact result than rounding can explain",
        "The bound holds for every correct implementation in the declared arithmetic, so this is a defect or another "
        "arithmetic, not bad luck. There is no tolerance to widen.",
        "A scale of 1/d_k instead of 1/sqrt(d_k); TF32 products under the profile fp32.",
        "See which runtimes share it (blame); run with optimisations off; check that the declared arithmetic is the one used.",
    ),
    Code(
        "OA302", "error", "An output has the wrong name, shape or dtype",
        "Nothing can be compared, and the caller gets something else than promised.",
        "An axis baked in at its traced size: the output is [2, 7, 45] for an input of length 8.",
        "Compare the output's axes with the contract; look for a Reshape or Expand with a traced size.",
    ),
    Code(
        "OA303", "error", "NaN or infinity stands where the exact result has none, or is missing where it has one",
        "Comparisons with a tolerance let NaN pass, since every comparison with NaN is false.",
        "A softmax without the maximum subtracted at a logit of 89 in fp32: inf / inf.",
        "Look at the logit scale of the case: an overflow needs the maximum subtracted; an empty row needs a policy.",
    ),
    Code(
        "OA304", "error", "The runtime raised",
        "The file loads elsewhere and fails here, often at sizes other than the traced one.",
        "A Reshape to the traced length: input shape {8,2,45}, requested shape {7,10,9}.",
        "Read the runtime's message; it names the node. Verify at that size alone with --input-shapes.",
    ),
    Code(
        "OA305", "error", "A row without any key does not follow the declared policy",
        "A query whose keys are all masked has three conventions, NaN, 0 and the mean of V. Padding makes such rows, and "
        "they leak into the loss or the next layer.",
        "Contract zero; the file masks with the lowest finite number, so that all logits are equal and the row is mean(V).",
        "Mask with -inf and guard the NaN, or declare the policy that the file has.",
    ),
    Code(
        "OA307", "warning", "The bound says nothing for some elements",
        "Their float64 value is known, but rounding could have done anything to it (a normalisation of numbers that are "
        "equal within their errors, say); the cell is inconclusive, not passed.",
        "LayerNormalization of a row whose entries are all the same.",
        "Look at the inputs of the case; verify with inputs as the model sees them (--load-inputs).",
    ),
    Code(
        "OA306", "error", "An output is outside the tolerance that was asked for",
        "--atol and --rtol are an extra gate, for those who must meet a number; the bound is checked beside it.",
        "--atol 1e-6 on outputs of size 100 in fp32, where one rounding is 6e-6.",
        "See whether the proof gate passed: then the tolerance asks for more than the arithmetic has.",
    ),
    Code(
        "OA308", "error", "The exact result is NaN",
        "Not rounding: the graph itself gives NaN for finite inputs, in float64 as well, and no contract says that it may. "
        "All runtimes agree on it, and it makes whatever comes after NaN too.",
        "A causal mask shifted by one, so that the first query has no key: softmax of nothing but -inf.",
        "Look at the row: if its keys are all masked, guard it, or declare empty_rows='nan' in the contract.",
    ),
    Code(
        "OA309", "error", "The runtime took its process along",
        "It crashed, did not come back, or took more memory than it may: in production that is an outage, not a wrong "
        "number. What dies while it imports the runtime or opens the file, or twice in a row, is not tried again with it.",
        "A segmentation fault while ONNX Runtime optimises a float16 graph.",
        "Reproduce it with the file alone, switch graph optimisations off, or try another version of the runtime. If it "
        "is slow or large rather than broken, raise --time-limit or --memory-limit.",
    ),
    Code(
        "OA310", "error", "The error is larger than that of correct implementations",
        "It is within the bound, which holds for the worst case; but four deliberately different implementations, plain "
        "sequential sums among them, are at least three times closer to the exact result on the same inputs.",
        "TF32 products, weights cast to half precision, a dropped key of small weight.",
        "See ran_as in the record: an arithmetic other than the declared one does this. Otherwise look at OA311, and run "
        "with optimisations off.",
    ),
    Code(
        "OA311", "error", "The error lies along the direction of a known fault",
        "Roundings do not agree with each other; here the errors of all rows together are what that fault would give, and "
        "its size is more than a constant may be rounded by.",
        "A scale off by 1e-6: each output is off by less than its bound, and all of them in the direction of a scale.",
        "Look at the constant it names: the scale of the scores, or a factor on the output.",
    ),
    Code(
        "OA313", "error", "A node is farther from its exact result than rounding can explain, given what it was given",
        "Each node is held against its own bound with the runtime's own inputs, so this is where the error came in: what "
        "follows the node only passes it on.",
        "LayerNormalization with an epsilon of 1e-3 instead of 1e-5.",
        "Look at this node: its attributes and constants in the file, and the runtime's kernel for it. Where the runtime "
        "rewrites the graph and no node of the rewritten one is off, the rewriting itself is wrong.",
    ),
    Code(
        "OA314", "note", "Every node is within its own bound",
        "The outputs are farther off than correct implementations are, and no single node says why: small errors, each "
        "allowed, add up, or the graph is ill-conditioned here.",
        "A kernel that rounds its sums in one direction.",
        "Compare with other runtimes on the same inputs: if all of them are off, the graph amplifies rounding there.",
    ),
    Code(
        "OA315", "note", "The deviations were cross-checked by noise injection",
        "Effective bits and the gates noise and direction rest on variances that are propagated through the graph. Noise "
        "of each node's own size, injected into the float64 evaluation, gives the same deviations another way.",
        "A ratio of 1.1 means that injected noise spreads a tenth farther than was propagated.",
        "Far from 1, trust the bound (the proof gate) more than effective bits here.",
    ),
    Code(
        "OA312", "note", "The runtime computed in another arithmetic than declared",
        "Its results are closer to exact, or farther, than the format of the graph says; on another machine they will differ.",
        "A float16 graph that a CPU runtime computes in fp32 between casts.",
        "Declare that arithmetic (--arithmetic), or do not rely on the extra digits.",
    ),
    Code(
        "OA401", "error", "Softmax weights are NaN or infinite where they should be numbers",
        "One such row makes the whole next layer NaN.",
        "exp(l) / sum(exp(l)) at l = 89 in fp32.",
        "Subtract the row's maximum before the exponential.",
    ),
    Code(
        "OA402", "error", "A row of softmax weights does not sum to one",
        "The output is then no weighted mean of the values. The limit is the rounding of a sum, division and store.",
        "softmax over the wrong axis; a denominator with an epsilon added.",
        "Check the axis of the Softmax node and what is added to its denominator.",
    ),
    Code(
        "OA403", "error", "A masked key receives weight",
        "What the mask hides reaches the output: padding, or the future in a causal model.",
        "A mask of -10 instead of -inf leaves e^-10 of the weight.",
        "Mask with -inf, or with a number far below the smallest logit.",
    ),
    Code(
        "OA404", "error", "A softmax weight is farther from its exact value than rounding can explain",
        "The weights decide what is attended; an error here can cancel in the output of the case at hand.",
        "Logits cast through fp16 before the softmax.",
        "Look at what comes before the softmax: scale, mask, casts.",
    ),
    Code(
        "OA405", "error", "The weights as a distribution are farther from the exact one than rounding can explain",
        "Divergence adds up what no single weight shows.",
        "All logits of a row scaled by 1.001.",
        "Check the scale and the arithmetic of the logits.",
    ),
    Code(
        "OA406", "error", "Outputs change when masked keys and values change",
        "A mask hides only if nothing behind it matters: the outputs must stay bitwise the same.",
        "Values of 3e38 at padded keys with weights of 1e-39 there.",
        "Find what reads the masked positions: a mask added too late, or a finite mask.",
    ),
    Code(
        "OA407", "note", "Softmax rows were not looked at",
        "The output is held against its bound at every size; beyond some millions of scores the oracle makes no array of "
        "them, and row sums, leaks and single weights stay unmeasured there.",
        "Attention of 8 heads over 4096 tokens.",
        "Verify at a smaller size as well, with --input-shapes: the same kernel is looked at there.",
    ),
    Code(
        "OA408", "error", "A softmax breaks at the given logits, or at smaller ones than its arithmetic explains",
        "Cut out as a graph of its own and run on that runtime, its weights stop to be numbers that sum to one where the "
        "data already is, or before ln(largest number) of the format that its exponentials are kept in, less the "
        "logarithm of the number of keys where all logits are equal.",
        "exp(l) / sum(exp(l)) in fp16 on a case with a logit of 12; a Softmax node that gives NaN at any finite logit.",
        "Subtract the row's maximum before the exponential; where the graph does, report the runtime's kernel.",
    ),
    Code(
        "OA409", "warning", "A softmax breaks at a finite logit",
        "It works on the given data, and the message says how many powers of two the data may grow before it does not.",
        "exp(l) / sum(exp(l)) in fp32: one logit of 88.72 makes the row NaN, and 1,024 equal ones of 81.79 do.",
        "Subtract the row's maximum before the exponential, or keep the logits bounded (a norm on q and k, a softcap).",
    ),
    Code(
        "OA410", "note", "A softmax that does not subtract its maximum does not break where its arithmetic would",
        "The runtime rewrites it, clamps what goes into the exponential, or keeps it in a longer format than its weights "
        "show. Another runtime, or another version of this one, need not.",
        "OpenVINO computes exp(l) / sum(exp(l)) as a Softmax with the maximum subtracted.",
        "None for this runtime; make the graph safe if it is to run anywhere else.",
    ),
    Code(
        "OA420", "warning", "A softmax does not subtract its maximum",
        "exp overflows above a logit of 88.72 in float32 and of 11.09 in float16 (less the logarithm of the number of keys "
        "where all are equal): inf / inf is NaN.",
        "Exp, ReduceSum and Div.",
        "Use the runtime's Softmax (torch.softmax exports as it), or subtract the row's maximum.",
    ),
    Code(
        "OA421", "error", "An attention's softmax is not over the keys",
        "The weights of a query over the keys have to sum to 1; over another axis the output is something else, and its "
        "size does not tell.",
        "softmax(q k^T, dim=-2).",
        "Take the softmax over the last axis of q k^T.",
    ),
    Code(
        "OA422", "error", "A softmax of an old opset makes one row of several axes",
        "Below opset 13 Softmax flattens all axes from `axis` on (1 by default); runtimes have read it in three ways "
        "(apache/tvm#19420, openvinotoolkit/openvino#37979).",
        "Softmax of opset 11 without an axis on (2, 3, 4): 12 numbers sum to 1.",
        "Give the last axis (axis=-1), or convert the file to opset 13 or above.",
    ),
    Code(
        "OA423", "note", "A softmax is in half precision",
        "A sum of n exponentials loses log2(n) of 11 bits (float16) or 8 (bfloat16) where it is accumulated in the "
        "format; many kernels accumulate in float32, and the file does not ask for it.",
        "Softmax of float16; Attention of float16 without softmax_precision.",
        "Cast to float32 before the softmax and back behind it, or set softmax_precision to 1 (FLOAT).",
    ),
    Code(
        "OA424", "note", "Logits may exceed float16 before they are scaled",
        "q k^T of d products is sqrt(d) times as large before the scale as after it, and float16 ends at 65504.",
        "q and k of float16, d = 64: MatMul, then Div by 8; numbers of 32 give 65536.",
        "Scale q, or q and k by the root of the scale, before the product.",
    ),
    Code(
        "OA425", "warning", "An attention's scale is a usual mistake",
        "Without 1/sqrt(d) the logits have sqrt(d) times the deviation and the softmax saturates; twice, it is flat. The "
        "file agrees with its module, so that no comparison shows it. Some models mean it (T5 has no scale).",
        "softmax(q k^T) v; or q / sqrt(d) and logits / sqrt(d); or sqrt of the model's width instead of the head's.",
        "Compare with the model's definition; the message names the nodes with the factors.",
    ),
    Code(
        "OA426", "note", "An attention is scaled by another number than 1/sqrt(d)",
        "Some models do so on purpose; else the logits are too flat or too sharp, and no comparison with the module shows it.",
        "scaled_dot_product_attention(..., scale=0.3) with d = 20.",
        "Compare with the model's definition; the message names the nodes with the factors.",
    ),
    Code(
        "OA427", "warning", "A row without any key has a value that depends on how the mask is written",
        "Hidden by a large number, all logits are equal and the row is the mean of the values, padding included; hidden "
        "by -inf it is NaN, which spreads. torch's scaled_dot_product_attention gives 0 (microsoft/onnxscript#2654, "
        "pytorch/pytorch#103749).",
        "Add of -3.4e38 where a mask is False, and a batch whose mask is all False.",
        "It happens where a causal model is padded on the left, and where a sequence is empty. If you feed such batches, "
        "say what such a row is to give (empty_rows in the contract), or set it to 0 behind the softmax; if not, ignore this.",
    ),
    Code(
        "OA428", "warning", "A number for a mask does not fit the format that it is cast to",
        "It becomes -inf there: rows without any key turn from the mean of the values to NaN, and 0 times it is NaN.",
        "Cast of -1e9 to float16, which ends at 65504.",
        "Take torch.finfo(dtype).min of the dtype that the mask is added in.",
    ),
    Code(
        "OA429", "error", "An infinite constant is multiplied with what may be 0",
        "0 times infinity is NaN: a mask written as (1 - mask) * -inf gives NaN for every key that is not hidden.",
        "(1 - mask) * -1e9, exported in float16, where the constant is -inf.",
        "Use Where(mask, logits, number), or a number that the dtype has.",
    ),
    Code(
        "OA430", "error", "A mask is applied before the softcap",
        "cap tanh(x / cap) makes -cap of -inf: hidden keys keep a weight of about e^(-cap).",
        "tanh((logits + mask) / 30) * 30.",
        "Cap the logits first and mask them then, as ONNX's Attention does.",
    ),
    Code(
        "OA431", "warning", "A causal mask depends on equal lengths",
        "With fewer queries than keys, runtimes and versions align the triangle at the first or at the last of them "
        "(microsoft/onnxruntime#29020); ONNX changed its mind within one opset.",
        "Attention with is_causal=1, 2 queries, 4 keys and no past.",
        "Give the past as past_key and past_value, or a mask instead of is_causal.",
    ),
    Code(
        "OA432", "error", "An attention's logits or weights are quantised in steps that swallow them",
        "Codes of n bits a step of n ln 2 or more apart leave of the logits only which code is the largest: the next has "
        "less than 2^-n of its weight. A quantiser that takes the number that hides keys for a logit gives such a scale, "
        "and a runtime computes the file as it says.",
        "QuantizeLinear of masked logits, calibrated with -3.4e38 among them: a scale of 1e36, all logits one code.",
        "Leave mask and softmax in float (nodes_to_exclude of ONNX Runtime's quantiser), as onnx-attest convert --to "
        "int8-static does; the message names the node.",
    ),
    Code(
        "OA501", "error", "A relation that holds bit by bit is broken",
        "Signs and powers of two change no rounding, and what an output does not depend on may be anything: a runtime "
        "that gives other bits there depends on what it should not, or does not repeat itself.",
        "V times 2 does not give the output times 2; a future token changes the output of an earlier one.",
        "Run the two inputs by hand; with optimisations off; with one thread.",
    ),
    Code(
        "OA502", "error", "A relation is broken by more than rounding allows",
        "Two runs of one runtime on inputs that have to give the same, but for rounding, differ by more than the sum of "
        "both runs' bounds. No other party is involved: the runtime, or the file, contradicts itself.",
        "A padded sequence gives other rows than the same sequence without its padding.",
        "docs/relations.md says what each relation is blind to and what breaks it; run the two inputs by hand, then verify "
        "with the reference on: it names the node.",
    ),
    Code(
        "OA503", "error", "A relation holds on one runtime and not on another",
        "Nobody says whether the relation has to hold for this file, but two correct runtimes of one file cannot differ "
        "in it: one of them computes another function.",
        "Outputs at t do not depend on inputs after t on ort-cpu, and do on openvino-cpu.",
        "Verify the file on both; say causal, masks and batch axes in its contract.",
    ),
    Code(
        "OA504", "error", "The file breaks what its contract promises",
        "A relation that follows from the contract does not hold even in float64: all runtimes that run the file are "
        "alike and wrong, or the contract says too much.",
        "A contract with causal='top-left', and a file that was exported without its mask.",
        "Export again, or correct the contract: causal, the masks' kinds, the batch axes.",
    ),
    Code(
        "OA505", "note", "The relations were not looked at",
        "Their inputs, a batch of 8 at a few more tokens than were traced, could not be made for this file; or the runtime "
        "compiles for minutes at each of their sizes.",
        "A file whose graph does not fit into memory at those sizes.",
        "Nothing else is lost by it; the other gates stand. Smaller traced sizes in the contract make smaller inputs.",
    ),
    Code(
        "OA601", "error", "The result is wrong with graph optimisations on and right with them off",
        "An optimiser pass changed the meaning of the graph.",
        "ort-cpu fails where ort-cpu-noopt passes on the same file.",
        "Switch passes off one by one with disabled_optimizers, and report the pass.",
    ),
    Code(
        "OA701", "warning", "A latency does not settle",
        "Its median is known to less than 5 %: a difference of that size between two runtimes cannot be seen, and a second "
        "run will give other numbers.",
        "median 1.9 ms, between 1.7 and 2.4 ms; neighbours: other programs took 60 % of the processor time it took itself.",
        "Do what the reason says: stop other programs, give fewer threads than processors, fix the clock; or measure longer "
        "(onnx-attest bench --seconds).",
    ),
    Code(
        "OA702", "note", "The warm-up ended before calls took the same time",
        "Caches, memory pools or a just-in-time compiler may still be changing what a call takes.",
        "A runtime that compiles a shape again after some calls.",
        "Measure longer (onnx-attest bench --seconds), and look at warm_up_s in records.jsonl.",
    ),
    Code(
        "OA703", "warning", "A runtime differs from itself",
        "The reference was timed in two processes, in the same rounds. What it differs from itself is noise: smaller "
        "differences between runtimes are told as no difference.",
        "torch against itself: 1.02 (0.95 to 1.09), so differences of up to 9 % say nothing here.",
        "Measure on a quieter machine or longer (onnx-attest bench --seconds).",
    ),
    Code(
        "OA704", "note", "A file of the run was verified and not timed",
        "The main job times each variant once, in float32, and no counter-example: timing everything takes longer than "
        "verifying it.",
        "mha-attention-24.onnx: of a variant in several opsets the first is timed.",
        "Time it by itself: onnx-attest bench FILE.onnx.",
    ),
    Code(
        "OA801", "error", "The manifest describes another file",
        "Contract, module and export request are those of other bytes: what they say does not hold here.",
        "The .onnx file was optimised or edited after its export.",
        "Export again, or delete the manifest to verify the file on its own.",
    ),
    Code(
        "OA802", "warning", "There is no exact result to compare with",
        "An operator of the graph is not in the oracle, so nothing is concluded: the cells are inconclusive, not passed.",
        "A graph with Conv.",
        "Give the contract a specification made of operators that the oracle has; the message names what is missing.",
    ),
    Code(
        "OA805", "note", "The logits could not be brought to a wanted deviation",
        "Saturated and overflowing softmax rows are tested by scaling the inputs; behind a normalisation that changes "
        "nothing, so these cases were left out.",
        "A pre-norm transformer block.",
        "Verify the attention on its own, or give inputs that reach the range (--load-inputs).",
    ),
    Code(
        "OA806", "note", "The file does not run on inputs that were guessed",
        "Without a contract nobody says which sizes a file takes, nor which integers. The case is skipped, since neither the "
        "runtime nor the oracle can run it: those sizes are untested.",
        "An image network that wants multiples of 32, at 13 x 17; one that pools 8 pixels to none.",
        "Say the sizes that count with --input-shapes, give inputs with --load-inputs, or export with a contract.",
    ),
    Code(
        "OA807", "warning", "A case was not begun within the time budget",
        "The sizes and masks that it stands for are untested.",
        "--time-budget 10 with a model that takes a second a case.",
        "Give more time, or say the sizes that count with --input-shapes.",
    ),
    Code(
        "OA808", "warning", "The exact result is NaN on inputs that were guessed",
        "Nobody says which numbers the file takes, and those that were made are none: the logarithm of a negative one, say. "
        "Where float64 gives NaN, so does the runtime, which proves nothing; the cell is inconclusive, not passed, or skipped "
        "where we left a row without any key.",
        "Log of its input, on numbers around zero.",
        "Give inputs as the model sees them with --load-inputs.",
    ),
    Code(
        "OA809", "warning", "Only some rows of a long attention were verified",
        "Each of them was held against all keys. A fault in few of the others is not excluded: the message says how many "
        "would have been seen, and with which confidence, for faults that are anywhere. The first and last row, those "
        "where blocks begin, and rows that are not finite, or zero, are always among those verified.",
        "131,072 tokens: the float64 result of all rows would take ten minutes.",
        "Verify more with --rows N (all of them: the number of tokens), or shorter sequences whole.",
    ),
    Code(
        "OA810", "warning", "A runtime would hold more than the memory that is free",
        "It computes all scores of an attention, queries x keys, before it goes on. The case was not run there: these sizes "
        "are untested on it.",
        "ONNX Runtime's CPU provider with ONNX's Attention of 131,072 tokens: 69 GB. Its GroupQueryAttention, and its "
        "MultiHeadAttention where nothing is hidden, go by blocks.",
        "Use a form of the operator that the runtime computes by blocks, a machine with more memory, or shorter sequences.",
    ),
    Code(
        "OA811", "warning", "A bundle was made by force",
        "Nothing proves that its file is right: its test data may pass, and that is no verification.",
        "onnx-attest deploy model.onnx --force, with records of another file.",
        "Verify the file, and bundle it again without --force.",
    ),
    Code(
        "OA812", "error", "The verification itself failed on a case",
        "Something in the file is what the verifier did not expect: it raised an exception where it should have said what is "
        "wrong. Nothing is known of the runtime here.",
        "A file that was damaged, or made to do harm.",
        "Check the file (onnx-attest check); if there is nothing wrong with it, report what is a fault of onnx-attest.",
    ),
    Code(
        "OA803", "error", "A known failure did not happen",
        "known.toml excuses a failure that is no longer there; the next real one would be excused as well.",
        "An entry for an exporter bug, after the exporter was fixed.",
        "Remove the entry from known.toml, or narrow its case pattern.",
    ),
    Code(
        "OA804", "error", "A required runtime did not run",
        "--require says that a verdict without this runtime is worth nothing.",
        "--require ort-cuda on a machine without a GPU.",
        "Run where the runtime works; onnx-attest doctor says why it does not work here.",
    ),
)  # fmt: skip

CODES: dict[str, Code] = {code.code: code for code in sorted(_TABLE, key=lambda code: code.code)}
