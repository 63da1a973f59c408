"""Output of nccl-tests is read, and refused with line and reason where it is wrong."""

import pytest

from meshwright.calibrate.nccl_tests import parse
from meshwright.calibrate.network import Point, fit
from meshwright.errors import InputError

# Format: nccl-tests 2.13 src/common.cu; times: 8 x H100 rows of the published NCCL tables (all_reduce and all_gather).
HEAD = """\
# nThread 1 nGpus 8 minBytes 1024 maxBytes 536870912 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
"""
RANKS = "".join(f"#  Rank  {r} Group  0 Pid   {4100 + r} on node{r // 4} device  {r % 4} [0x1b] NVIDIA H100 80GB HBM3\n" for r in range(8))
COLUMNS = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
        1024           512      half     sum      -1    15.60    0.07    0.11      0    15.71    0.07    0.11      0
     1048576        524288      half     sum      -1    25.40   41.28   72.24      0    25.31   41.43   72.50      0
    16777216       8388608      half     sum      -1   121.91  137.62  240.83      0   121.40  138.20  241.85      0
   536870912     268435456      half     sum      -1   2111.1  254.31  445.04      0   2110.2  254.42  445.23      0
"""
TAIL = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 189.556
#
"""
CONCLUDED = "# Collective test concluded: all_reduce_perf\n"
GOOD = HEAD + RANKS + COLUMNS + ROWS + TAIL + CONCLUDED


def first_row(text: str = GOOD) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.startswith("        1024"))


def refused(text: str, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, "out.txt", **kwargs)
    return str(caught.value)


def test_reads_op_ranks_nodes_sizes_and_times():
    points = parse(GOOD, "out.txt")
    assert points[0] == Point("all_reduce", 8, 1024, pytest.approx(15.6e-6), nodes=2, where=f"out.txt:{first_row()}")
    assert [(p.payload_bytes, p.time_s) for p in points[1:]] == [
        (1048576, pytest.approx(25.4e-6)),
        (16777216, pytest.approx(121.91e-6)),
        (536870912, pytest.approx(2111.1e-6)),
    ]
    assert 0 < fit(points, "ring").curve.bandwidth_bytes_per_s < 1e12


def test_program_may_come_from_the_command_line_or_the_caller():
    without = HEAD + RANKS + COLUMNS + ROWS + TAIL
    assert {p.op for p in parse("$ ./build/reduce_scatter_perf -b 1K -e 512M -f 4 -g 8\n" + without, "out.txt")} == {"reduce_scatter"}
    assert {p.op for p in parse(without, "out.txt", op="all_to_all")} == {"all_to_all"}
    assert "is not said in the output" in refused(without)


def test_launcher_prefixes_and_log_lines_are_skipped():
    noisy = "".join(
        f"[1,0]<stdout>:{line}\nnode0:880:880 [1] NCCL INFO comm 0x55 rank 0 nranks 8 - Init COMPLETE\n" for line in GOOD.splitlines()
    )
    assert [p.time_s for p in parse(noisy, "out.txt")] == [p.time_s for p in parse(GOOD, "out.txt")]


def test_older_columns_without_root_and_with_an_error_instead_of_a_count():
    old = COLUMNS.replace("  root ", "")
    rows = "     1048576        524288      half     sum    25.40   41.28   72.24  5e-04    25.31   41.43   72.50  5e-04\n"
    assert [p.payload_bytes for p in parse(HEAD + RANKS + old + rows + CONCLUDED, "out.txt")] == [1048576]


def test_several_runs_in_one_file():
    gather = GOOD.replace("all_reduce_perf", "all_gather_perf").replace("     sum", "    none")
    points = parse(GOOD + gather, "out.txt")
    assert [p.op for p in points] == ["all_reduce"] * 4 + ["all_gather"] * 4


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("    15.60    0.07", "   -15.60    0.07", "`line {line}: time` = '-15.60'"),
        ("    15.60    0.07", "     0.00    0.07", "`line {line}: time` = '0.00'"),
        ("    15.60    0.07", "      nan    0.07", "`line {line}: time` = 'nan'"),
        ("    15.60    0.07", "     fast    0.07", "`line {line}: time` = 'fast'"),
        ("    15.60    0.07    0.11      0    15.71    0.07    0.11      0", "    15.60    0.07", "has 7 columns"),
        ("0.11      0    15.71", "0.11     77    15.71", "says that results were wrong"),
        ("        1024  ", "       -1024  ", "`line {line}: size` = '-1024'"),
    ],
    ids=["negative-time", "zero-time", "nan", "word", "cut-off", "wrong-results", "negative-size"],
)
def test_malformed_rows_are_refused_with_their_line(old, new, reason):
    assert GOOD.count(old) == 1
    assert reason.format(line=first_row()) in refused(GOOD.replace(old, new))


def test_times_in_ms_among_us_are_refused():
    message = refused(GOOD.replace("   121.91  137.62", "   0.1219  137.62"))
    assert f"`line {first_row() + 2}: time` = '0.1219' does not fit algbw = 137.62 GB/s" in message
    assert "mixed?" in message


def test_two_unit_lines_that_differ_are_refused():
    message = refused(HEAD + RANKS + COLUMNS + ROWS + COLUMNS.replace("(us)", "(ms)") + ROWS + CONCLUDED)
    assert "units` = 'ms GB/s GB/s ms GB/s GB/s' differ from those above" in message


def test_other_units_are_refused():
    assert "units` = 'ms GB/s GB/s" in refused(GOOD.replace("(us)", "(ms)"))


def test_all_mistakes_are_told_together():
    text = GOOD.replace("    15.60    0.07", "   -15.60    0.07").replace("   2111.1  254.31", "   2111.1     fast")
    with pytest.raises(InputError) as caught:
        parse(text, "out.txt")
    assert [m.key for m in caught.value.mistakes] == [f"line {first_row()}: time", f"line {first_row() + 3}: algbw"]


def test_failed_check_at_the_end_is_refused():
    assert "says that results were wrong" in refused(GOOD.replace("values : 0 OK", "values : 12 FAILED"))


@pytest.mark.parametrize("text", ["", "hello\n", HEAD + RANKS + COLUMNS + TAIL + CONCLUDED])
def test_nothing_measured_is_refused(text):
    assert "has no measured rows" in refused(text)


def test_ranks_must_be_known():
    alone = HEAD + COLUMNS + ROWS + CONCLUDED
    assert "ranks` are not listed in the output" in refused(alone)
    assert {p.ranks for p in parse(alone, "out.txt", ranks=16)} == {16}


def test_program_without_a_curve_is_refused():
    assert "program` = 'sendrecv_perf' has no curve" in refused(GOOD.replace("all_reduce_perf", "sendrecv_perf"))


def test_one_point_only_cannot_be_fitted():
    one = "\n".join(line for line in GOOD.splitlines() if not line.startswith(("     1048576", "    16777216", "   536870912")))
    with pytest.raises(InputError) as caught:
        fit(parse(one, "out.txt"), "ring")
    assert str(caught.value).startswith(f"out.txt:{first_row()}: `different sizes` = 1 of all_reduce is too few for a curve")
