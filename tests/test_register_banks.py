"""The count of register-bank conflicts, on listings whose answer is known by hand, and on the ladder."""

from cudalab import register_banks, sass
from cudalab.build import build
from cudalab.registry import resolve_step

LISTING = """
        .section .text.k,"ax",@progbits
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDS.128 R8, [R20] ;
        /*0020*/                   FFMA R0, R2.reuse, R4, R6 ;
        /*0030*/                   FFMA R1, R2, R5, R6 ;
        /*0040*/                   FFMA R3, R8, R5, R6 ;
        /*0050*/               @P0 BRA `(.L_x_0) ;
        /*0060*/                   EXIT ;
"""


def test_branches_know_where_they_go():
    body = sass.functions(LISTING)["k"]
    assert [i.target for i in body] == [None] * 5 + [0x10, None]


def test_the_main_loop_is_the_code_that_repeats():
    body = sass.functions(LISTING)["k"]
    assert [i.address for i in sass.main_loop(body)] == [0x10, 0x20, 0x30, 0x40, 0x50]
    assert sass.main_loop(body, "HMMA") == []


def test_conflicts_are_uncached_operands_in_one_bank():
    loop = sass.main_loop(sass.functions(LISTING)["k"])
    # R2 R4 R6: three even; (R2) R5 R6: one of each, R2 cached; R8 R5 R6: two even
    assert register_banks.count(loop) == register_banks.Banks(multiply_adds=3, conflicts=2, nearest_read=3)
    cleared = sass.main_loop(sass.functions(LISTING.replace(".reuse", ""))["k"])
    assert register_banks.count(cleared).conflicts == 3


def test_a_loop_without_shared_reads_has_no_nearest():
    assert register_banks.count([]) == register_banks.Banks(0, 0, None)


def test_step_10_has_fewer_conflicts_than_step_9():
    def share(name):
        step = resolve_step(name)
        built = build(step.plan(step.op.problem(dict(M=4096, N=4096, K=4096))), "sm_90a")
        banks = register_banks.count(sass.main_loop(sass.functions(built.sass)[built.kernels["sgemm"].symbol]))
        return banks.conflicts / banks.multiply_adds
    assert share("step10") < 0.25 < share("step9")
