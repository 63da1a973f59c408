"""Whatever is asked, the answer is warnings or an InputError with something to say; never another exception."""

from typing import get_args, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.spec.layout import CP_KINDS, KEYS, RECOMPUTES, SCHEDULES, Layout, parse_layout, print_layout
from meshwright.spec.rules import LayoutWarning, check
from meshwright.spec.workload import Decode, Prefill, Training
from sample_inputs import H100_CLUSTER, MODELS, SLOW_CLUSTER

SMALL = st.sampled_from([1, 1, 1, 2, 3, 4, 5, 6, 8, 16, 64])
SIZES = st.sampled_from([1, 2, 8, 30, 512, 1024, 8192, 100_000])
WORKLOADS = st.builds(lambda kind, seq, batch: kind(seq=seq, batch=batch), st.sampled_from([Training, Prefill, Decode]), SIZES, SIZES)
CLUSTERS = st.sampled_from([None, H100_CLUSTER, SLOW_CLUSTER])


@st.composite
def plausible_layouts(draw):
    """Well-formed layouts, legal for some model or not."""
    cp, kind = draw(SMALL), draw(st.sampled_from(CP_KINDS))
    schedule = draw(st.sampled_from(SCHEDULES))
    zero = draw(st.integers(0, 3))
    recompute = draw(st.sampled_from(RECOMPUTES))
    return Layout(
        tp=draw(SMALL), sp=draw(st.booleans()), vocab=draw(st.booleans()), vocab_pad=draw(st.sampled_from([1, 128])), cp=cp, cp_kind=kind,
        ulysses={"ulysses": cp, "usp": draw(st.sampled_from([d for d in range(1, cp + 1) if cp % d == 0]))}.get(kind, 1),
        pp=draw(SMALL), schedule=schedule,
        virtual_stages={"interleaved": draw(st.integers(2, 5)), "zb-v": 2, "dualpipe-v": 2}.get(schedule, 1),
        stages=draw(st.none() | st.lists(st.integers(0, 80), min_size=1, max_size=8).map(tuple)), ep=draw(SMALL), etp=draw(SMALL),
        dp_replicate=draw(SMALL), dp_shard=draw(SMALL), zero=zero,
        zero_variant=draw(st.sampled_from(["", "local", "keep"])) if zero == 3 else "", mb=draw(SMALL), recompute=recompute,
        recompute_layers=draw(st.none() | st.integers(1, 90)) if recompute == "full" else None,
        order="-".join(draw(st.permutations(["tp", "cp", "ep", "dp", "pp"]))),
    )  # fmt: skip


def answered(model, workload, layout, cluster, gpus):
    """The warnings, or None after an InputError whose every mistake names a key and what would be legal."""
    try:
        found = check(model, workload, layout, cluster, gpus)
    except InputError as error:
        assert error.mistakes
        for mistake in error.mistakes:
            assert mistake.key and mistake.legal and str(mistake)
        return None
    assert all(isinstance(warning, LayoutWarning) and warning.message and warning.remedy for warning in found)
    return found


@settings(max_examples=400)
@given(st.sampled_from(MODELS), WORKLOADS, plausible_layouts(), CLUSTERS, st.none() | SMALL)
def test_well_formed_layouts_are_judged(model, workload, layout, cluster, gpus):
    found = answered(model, workload, layout, cluster, gpus)
    if found is not None:
        assert parse_layout(print_layout(layout)) == layout, "what is legal can be written down and read back"


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(), st.floats(), st.text(max_size=5), st.just(()), st.tuples(st.integers())
)  # fmt: skip


@settings(max_examples=400)
@given(st.sampled_from(MODELS), plausible_layouts(), st.data())
def test_layouts_with_values_of_any_type_are_refused_or_judged(model, layout, data):
    """A frozen dataclass takes whatever it is given; check must not fall over it."""
    field = data.draw(st.sampled_from(list(get_type_hints(Layout))))
    broken = {name: getattr(layout, name) for name in get_type_hints(Layout)} | {field: data.draw(ANYTHING)}
    answered(model, Training(seq=8192, batch=512), Layout(**broken), H100_CLUSTER, None)


@settings(max_examples=300)
@given(st.sampled_from(MODELS), ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_workloads_with_values_of_any_type_are_refused_or_judged(model, seq, batch, precision, gpus):
    answered(model, Training(seq=seq, batch=batch, precision=precision), Layout(), H100_CLUSTER, gpus)


WORDS = st.one_of(
    st.text(max_size=12),
    st.builds(lambda key, value: f"{key}={value}", st.sampled_from(KEYS), st.text("0123456789:x*=,-abcdefzkp. ٣²", max_size=10)),
    st.builds(lambda key, value: f"{key}={value}", st.sampled_from(KEYS), st.integers(-2, 10**12)),
    st.builds(lambda p, s, v: f"pp={p}:{s}*{v}", SMALL, st.sampled_from(SCHEDULES), SMALL),
    st.builds(lambda c, k, u: f"cp={c}:{k}={u}x{c}", SMALL, st.sampled_from(CP_KINDS), SMALL),
)


@settings(max_examples=1000)
@given(st.lists(WORDS, max_size=6).map(" ".join), st.none() | SMALL)
def test_texts_of_any_kind_are_refused_or_read(text, gpus):
    try:
        layout = parse_layout(text, gpus)
    except InputError as error:
        assert error.mistakes
        return
    assert parse_layout(print_layout(layout)) == layout
    answered(MODELS[0], Training(seq=8192, batch=512), layout, H100_CLUSTER, gpus)


def test_the_fuzz_reaches_every_field():
    assert set(get_type_hints(Layout)) == set(Layout.__dataclass_fields__)
    assert get_args(Training | Prefill | Decode) == (Training, Prefill, Decode)
