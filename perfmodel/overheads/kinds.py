"""The closed list of host-overhead types.

Source: Lin et al., "Building a Performance Model for Deep Learning Recommendation Model Training
on GPUs", 2022, section IV-C; operators that launch nothing are a class of their own here.
"""

from __future__ import annotations

T1 = "T1"
T2 = "T2"
T3 = "T3"
T4 = "T4"
T5 = "T5"
OP_WITHOUT_LAUNCH = "op_without_launch"

TYPES = (T1, T2, T3, T4, T5, OP_WITHOUT_LAUNCH)
"""Overhead types, in the order of the codes in `Samples.type`."""

CODE = {name: code for code, name in enumerate(TYPES)}

DESCRIPTIONS = {
    T1: "gap before an operator: from the end of the one before it on its thread",
    T2: "start of an operator to its first launch call",
    T3: "end of an operator's last launch call to the operator's end",
    T4: "a launch call itself",
    T5: "gap between consecutive launch calls of one operator",
    OP_WITHOUT_LAUNCH: "an operator that launches nothing",
}
