"""What is around a node that a finding names: found in the graph, recorded, and drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import onnx
import pytest

from onnx_attest.verify import verify
from onnx_attest.verify.neighbours import MOST, Neighbours
from onnx_attest.verify.records import FindingRecord, Neighbour
from onnx_attest.verify.report.html.findings import findings
from onnx_attest.verify.report.pictures.neighbours import neighbourhood

GRAPH = """
<ir_version: 10, opset_import: ["": 18]>
g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y, float[n, 4] p) <float c = {2}> {
    [product] a = MatMul (x, w)
    [scaled] p = Mul (a, c)
    [weights] s = Softmax (p)
    [sum] y = Add (s, p)
}
"""


def told(neighbours):
    return [str(one) for one in neighbours]


def test_neighbours_are_what_is_taken_and_what_takes():
    assert told(Neighbours(onnx.parser.parse_model(GRAPH)).of("scaled")) == [
        "here Mul scaled",
        "before MatMul product (a)",
        "before constant (c)",
        "behind output (p)",
        "behind Softmax weights (p)",
        "behind Add sum (p)",
    ]


def test_a_node_that_the_graph_does_not_have_has_no_neighbours():
    """The first bad node may be one of the graph that a runtime made of the file."""
    assert Neighbours(onnx.parser.parse_model(GRAPH)).of("fused") == ()


def test_a_value_that_goes_to_hundreds_of_nodes_is_told_of_a_few():
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])
    nodes = [onnx.helper.make_node("Neg", ["x"], ["a"], name="first")]
    nodes += [onnx.helper.make_node("Abs", ["a"], [f"y{index}"]) for index in range(300)]
    outputs = [onnx.helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, ["n"])]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], outputs))
    assert len(Neighbours(model).of("first")) == 2 + MOST


def test_a_node_inside_a_branch_has_the_neighbours_of_its_branch():
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 18]>
    g (bool b, float[n] x) => (float[n] y) {
        y = If (b) <
            then_branch = t () => (float[n] one) { [negative] a = Neg (x) [whole] one = Abs (a) },
            else_branch = e () => (float[n] two) { two = Exp (x) }
        >
    }
    """)
    assert told(Neighbours(model).of("whole")) == [
        "here Abs whole",
        "before Neg negative (a)",
        "behind output (one)",
    ]


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Return the report of a file whose softmax is off by its constant: NaN, which names the node that makes it."""
    model = onnx.parser.parse_model(GRAPH)
    path = tmp_path_factory.mktemp("around") / "bad.onnx"
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32(np.nan), "c"))
    onnx.save(model, path)
    return verify(path, runtimes=["onnx-reference"])


def test_a_finding_that_names_a_node_of_the_file_carries_its_neighbours(failed):
    named = [one for one in failed.findings if one.node and one.severity != "note"]
    assert named
    for one in named:
        assert [near.node for near in one.around if near.side == "here"] == [one.node]


def finding(**more):
    fields = {
        "code": "OA313",
        "severity": "error",
        "message": "m",
        "next_step": "n",
        "node": "scaled",
        "model": "m",
    }
    return FindingRecord(**fields | more)


def test_the_picture_names_every_neighbour_and_is_well_formed():
    around = Neighbours(onnx.parser.parse_model(GRAPH)).of("scaled")
    root = ElementTree.fromstring(neighbourhood("p", finding(around=around)))
    said = {element.text for element in root.iter() if element.tag.endswith("}text")}
    assert {"MatMul", "product", "constant", "c", "Mul", "scaled", "Softmax", "weights", "Add", "sum"} <= said
    described = root.find("{http://www.w3.org/2000/svg}desc").text
    assert described.startswith(
        "Mul scaled takes MatMul product, constant c; gives to output p, Softmax weights"
    )


def test_a_finding_without_neighbours_has_no_picture():
    assert neighbourhood("p", finding()) == ""


def test_the_page_draws_each_node_once_and_escapes_its_name():
    here = Neighbour(side="here", node="<b>", operator="Mul", value="")
    page = findings([finding(node="<b>", around=(here,)), finding(node="<b>", around=(here,), case="other")])
    assert page.count("data-around") == 1
    assert "<b>" not in page
