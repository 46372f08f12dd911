r"""The parts of an answer are split by one grammar, read whole or not at all, and compared as what they
are, whichever of the two is the reference.
"""

from __future__ import annotations

import pytest

from comas.answers import maths, parts
from comas.types import Question

SAME = {
    "names in two cases": r"""
\frac{Rr}{R-r} | -\frac{Rr}{r-R}
\frac{1}{M-m} | -\frac{1}{m-M}
x^2+1 | X^2+1
y=2x | Y=2X
C | c
""",
    "units of one letter": r"""
\frac{3}{4} | \frac{3}{4}\text{ m}
\sqrt{2} | \sqrt{2}\text{ m}
2\pi | 2\pi\text{ m}
2\sqrt{3} | 2\sqrt{3}\,\text{m}
5\sqrt 2 | 5\sqrt{2}\text{ N}
""",
    "large exact numbers": r"""
2^{100}-1 | 2\cdot 2^{99}-1
100!+1 | 1+100!
""",
    "congruences": r"""
x\equiv 3 \pmod 5 | x\equiv3\pmod{5}
x\equiv 3 \pmod 5 | x \equiv 3 (\bmod 5)
n\equiv 2 \pmod 7 | n\equiv 9 \mod 7
n\equiv 2 \pmod 7 | 2 \pmod 7
""",
    "primes, transposes and derivatives": r"""
f'(x)=2x | 2x
f'(x) | f^{\prime}(x)
A^T B | A^{T}B
\frac{dy}{dx}=3x^2 | 3x^2
B^{-1} | B^{-1}
""",
    "lists": r"""
1,-2 | a=1\text{ or }a=-2
4,7 | x=4 or x=7
x=4,x=7 | x=4 \text{ and } x=7
(5,8),(8,5) | (5,8)\text{ and }(8,5)
(1,2),(3,4) | (3,4);(1,2)
x=3,y=8 | \begin{aligned}x&=3\\y&=8\end{aligned}
x=3,y=8 | \begin{cases}y=8\\x=3\end{cases}
19, 46, and 82 | 82,46,19
""",
    "names of values": r"""
(p,q)=(3,2) | (3,2)
(a,b,c)=(1,2,3) | (1,2,3)
\{x,y\}=\{1,2\} | \{2,1\}
AB\cdot CD=12 | 12
\frac{NO}{BO}=\frac{1}{\sqrt6} | \frac{1}{\sqrt6}
\lim_{x\to0}f(x)=3 | 3
\tan\theta=2 | 2
\cos C=\frac12 | \frac12
S_{ABC}=7 | 7
V_1:V_2=11:21 | 11:21
""",
    "calculations": r"""
42 | 6\cdot7=42
21 | 84/4=21
42 | 2^5+10=32+10=42
\frac{\sqrt3}{3} | \frac{\sqrt3}{3}\approx 0.577
x^2+2x+1 | (x+1)^2=x^2+2x+1
y=2x+3 | y-2x=3
""",
    "arguments without braces": r"""
\frac\pi2 | \frac{\pi}{2}
\frac1\pi | \frac{1}{\pi}
\frac{3}x | \frac{3}{x}
\sqrt[3]2 | \sqrt[3]{2}
\sqrt5x | x\sqrt{5}
x^\frac12 | \sqrt{x}
10^-3 | 0.001
x^-2 | \frac{1}{x^2}
\nicefrac{1}{2} | 0.5
e^\pi | e^{\pi}
""",
    "two signs": r"""
\frac{1\pm\sqrt5}{2} | \frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}
\sqrt{2\pm\sqrt3} | \sqrt{2-\sqrt3},\sqrt{2+\sqrt3}
(\pm1,0) | (-1,0),(1,0)
(\pm1,\mp2) | (1,-2),(-1,2)
x=\pm 3 | 3,-3
\pm 7 | \{-7,7\}
""",
    "matrices": r"""
\begin{pmatrix}1&2\\[4pt]3&4\end{pmatrix} | \begin{pmatrix}1&2\\3&4\end{pmatrix}
\begin{pmatrix}1&2\cr 3&4\end{pmatrix} | \begin{bmatrix}1&2\\3&4\end{bmatrix}
\begin{smallmatrix}1&2\\3&4\end{smallmatrix} | \begin{pmatrix}1&2\\3&\frac82\end{pmatrix}
""",
    "sums and integrals": r"""
\sum_{k=1}^{4} k | 10
\sum_{k=0}^{n}\binom{n}{k} | 2^n
\prod_{i=1}^{3} i | 6
1 | \int_0^1 2x\,dx
9 | \int_0^3 2x\,dx
""",
    "degrees and repeating decimals": r"""
\sin 30^\circ | 0.5
\cos 60^{\circ} | \frac12
\tan 20^\circ | \cot 70^\circ
45^\circ | 45
0.(6) | \frac23
0.\dot6 | \frac23
1.2\overline{3} | \frac{37}{30}
""",
    "inequalities": r"""
x<2\text{ or }x>5 | (-\infty,2)\cup(5,\infty)
(0,1) | 0<f(x)<1
x>2\text{ and }x<5 | (2,5)
\{x\mid x>1\} | (1,\infty)
x \ge 2 | 2 \le x
x<2 \text{ or } x>3 | x>3\text{ or }x<2
x\ne 2 | (-\infty,2)\cup(2,\infty)
x^2+y^2<4 | 4>x^2+y^2
p\ne q | q\neq p
3 \ne t | t\ne 3
m+n\ne 0 | -n-m\ne0
""",
    "units": r"""
7 | 7\ \mathrm{cm^2}
7 | 7 cm²
7 | US$7
7 | 7\ \mu\text{m}
7 | 7\,\text{m}/\text{s}
9 | 9~\text{kg}\cdot\text{m}/\text{s}^2
4 | 4\text{ N}\cdot\text{m}
0.0015 | 1.5e-3 V
0.0015 | 1.5e-3\text{ V}
25 | 25^\circ C
36 | 36°F
12 | \text{\$12}
1500 | \num{1500}
1500 | 1{,}500
2001500 | 2\,001\,500
0.0015 | 0.001\,500
1500 | 1.5 x 10^3
4200000 | 4.2\text{ million}
""",
}
OTHER = {
    "names in two cases": r"""
R-r | 0
V-v | 0
\frac{R}{r} | 1
\frac{R}{r} | \frac{r}{R}
\pi(R^2-r^2) | \pi(r^2-R^2)
y=R-r | y=r-R
""",
    "large exact numbers": r"""
2^{100}-1 | 2^{100}
2^{2024}-1 | 2^{2024}
100! | 100!+1
1-\frac{1}{2^{100}} | 1
""",
    "determinants": r"""
\begin{vmatrix}1&2\\3&4\end{vmatrix} | \begin{pmatrix}1&2\\3&4\end{pmatrix}
""",
    "congruences": r"""
x\equiv 3 \pmod 5 | x\equiv 4 \pmod 5
x\equiv 3 \pmod 5 | 5
x\equiv 3 \pmod 5 | 3
x\equiv 3 \pmod 5 | y\equiv 3 \pmod 5
x\equiv 3 \pmod 5 | x\equiv 3 \pmod 7
""",
    "primes, transposes and derivatives": r"""
f'(x)=2x | f(x)=2x
y''+y=0 | y'+y=0
A' | A
A^T | A
\frac{dy}{dx} | \frac{dx}{dy}
\mathbf{a}\times\mathbf{b} | \mathbf{b}\times\mathbf{a}
\vec{u}\times\vec{v} | \vec{v}\times\vec{u}
f(2x) | 2f(x)
""",
    "two quantities": r"""
5 | 5\text{ feet }6\text{ inches}
5 | 5\text{ hours and }30\text{ minutes}
3 | 3\text{ red and }2\text{ blue}
3 | 3\text{ cm by }2\text{ cm}
3 | 3\text{ or more}
3 | 3\text{ at most}
4 | 4\text{ m }2\text{ cm}
""",
    "more than is read": r"""
2 | \ne 2
2 | 2,\ldots
f(x)=0 | \forall x>0, f(x)=0
4 | 4 \clubsuit
4 | \exists 4
""",
    "no names of values": r"""
x+y=5 | 5
ab=6 | 6
|x|=3 | 3
x^2=4 | 4
2x=6 | 6
(p,q)=(3,2) | (2,3)
x=1,y=2 | x=2,y=1
y=2x | y=3x
""",
    "calculations": r"""
42 | 6\cdot7=43
43 | 6\cdot7=43
x^2+1 | (x+1)^2=x^2+1
""",
    "numbers": r"""
32349 | 32, 349
100200 | 100, 200
1234 | 1.234
5 | 0,005
5 | 0 005
70 | 0{,}070
8 | 0\,008
0.07 | 0{,}070
5 | 2+0{,}003
1.5e-3 | 1.5\cdot e-3
\sin 30^\circ | -0.988032
1,1,2 | 1,2,2
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{pmatrix}1&3\\2&4\end{pmatrix}
\frac\pi2 | \frac2\pi
(\pm1,0) | (1,0)
""",
    "inequalities": r"""
x<2\text{ or }x>5 | (2,5)
x>2\text{ and }x<5 | (2,6)
\{x\mid x>1\} | (-\infty,1)
x^2>4 | x^2<4
x>2 | y>2
p\ne q | p\ne r
m+n\ne 0 | m-n\ne0
m<n | n<m
""",
    "formulas": r"""
2x | \ln x
\sqrt{x^2} | x
2\pi | 2\pi^2
x | -x
720! | 6!!
n! | n!!
5\cdot x | 5\cdot\text{m}
5 | 5/m
3 | 3\cdot h
2 | 2/3\cdot N
7 | 7\cdot K^{2}
2^x | x^2
""",
}


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    lines = [line for block in table.values() for line in block.strip().splitlines()]
    return [(one, other) for one, _, other in (line.partition(" | ") for line in lines)]


def verdict(gold: str, answer: str) -> str:
    return maths.verify(Question(id="q", prompt="?", answer=gold), rf"\boxed{{{answer}}}")


@pytest.mark.parametrize(("one", "other"), rows(SAME))
def test_the_same_parts(one: str, other: str) -> None:
    assert (verdict(one, other), verdict(other, one)) == ("right", "right")
    assert maths.same(one, other)
    assert (verdict(one, one), verdict(other, other)) == ("right", "right")


@pytest.mark.parametrize(("one", "other"), rows(OTHER))
def test_other_parts(one: str, other: str) -> None:
    assert (verdict(one, other), verdict(other, one)) == ("wrong", "wrong")
    assert not maths.same(one, other)


@pytest.mark.parametrize(
    "text",
    [r"\forall x", "A^T", "f'", r"5\text{ ft }6", r"\clubsuit 4", "4_a", "3 4", r"\frac{dy}{dx}"],
)
def test_what_is_not_read_whole_has_no_value(text: str) -> None:
    node = parts.parse(text)
    assert node[:2] == ["value", None]
    assert maths.value(text) is None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("[1,3]", "1,3"),
        ("(1,3]", "1,3"),
        (r"(-\infty,2]", r"-\infty,2"),
        (r"(2,\infty)", r"2,\infty"),
    ],
)
def test_the_ends_of_an_interval_are_no_interval(gold: str, answer: str) -> None:
    assert verdict(gold, answer) == "wrong"
    assert verdict("(1,3)", "1,3") == "right", "a pair may be written without brackets"
