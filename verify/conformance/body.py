"""A model with the function body that ONNX defines for an operator in the operator's place."""

from __future__ import annotations

import onnx
import onnx.defs
import onnx.helper
import onnx.inliner

from onnx_attest.verify.conformance.case import node_of

_DOMAIN = "onnx_attest.body"
"""A function of the operator's own name and domain would be the operator."""


def body_of(model: onnx.ModelProto, operator: str) -> onnx.ModelProto | None:
    """Return the model with the function body in the place of the operator's node, None if ONNX defines none.

    The body is that of the model's own opset, or of the newest one before it. onnx's inliner knows the bodies too, but
    not where an input in the middle is left out.
    """
    called = onnx.ModelProto()
    called.CopyFrom(model)
    node = node_of(called, operator)
    assert node is not None  # the model is a case of it
    function = _function(called, node)
    if function is None:
        return None
    called.functions.append(function)
    called.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    inlined = onnx.inliner.inline_local_functions(called)
    kept = [one for one in inlined.opset_import if one.domain != _DOMAIN]
    del inlined.opset_import[:]
    inlined.opset_import.extend(kept)
    return inlined


def _function(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.FunctionProto | None:
    """Return the function that the node, whose domain becomes the function's, is a call of."""
    opset = next(one.version for one in model.opset_import if one.domain == node.domain)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    _add_defaults(node, schema)
    function = onnx.FunctionProto()
    if versions := [one for one in schema.context_dependent_function_opset_versions if one <= opset]:
        types = {value.name: value.type for value in model.graph.input}
        given = [types[name].SerializeToString() if name else b"" for name in node.input]
        text = schema.get_context_dependent_function_with_opset_version(
            max(versions), node.SerializeToString(), given
        )
    elif versions := [one for one in schema.function_opset_versions if one <= opset]:
        text = schema.get_function_with_opset_version(max(versions))
    else:
        return None
    function.ParseFromString(text)
    function.domain = node.domain = _DOMAIN
    for one in function.opset_import:
        if one.domain == "":
            one.version = opset
    return function


def _add_defaults(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Give the node the attributes that it leaves to their defaults: the body refers to them."""
    given = {one.name for one in node.attribute}
    node.attribute.extend(
        one.default_value
        for name, one in schema.attributes.items()
        if name not in given and one.default_value.name
    )
