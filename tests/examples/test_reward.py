from __future__ import annotations

from decimal import Decimal

import pytest

from reward import final_answer, reference_answer, reward


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        pytest.param("14+23=37\n#### 37", "37", id="after the mark"),
        pytest.param("####37", "37", id="no space after the mark"),
        pytest.param("####  \n 37 ", "37", id="spaces and a line break after the mark"),
        pytest.param("#### 3\nNo, that is wrong.\n#### 4", "4", id="the last mark counts"),
        pytest.param("Answer: 12", "12", id="answer in words"),
        pytest.param("the ANSWER : 12 apples", "12", id="any case, a space before the colon, a unit behind"),
        pytest.param("Answer: 12\n#### 13", "13", id="the mark goes before the words"),
        pytest.param("#### 1,234,567", "1234567", id="thousands"),
        pytest.param("#### -5", "-5", id="minus"),
        pytest.param("#### \u22125", "-5", id="typographic minus"),
        pytest.param("#### - 5", "-5", id="minus and a space"),
        pytest.param("#### +5", "5", id="plus"),
        pytest.param("#### -$1,250.75", "-1250.75", id="sign, currency, thousands, decimals"),
        pytest.param("#### .5", "0.5", id="bare decimals"),
        pytest.param("#### 37.", "37", id="full stop behind"),
        pytest.param("#### 50%", "50", id="percent behind"),
    ],
)
def test_the_final_answer_is_the_number_after_the_last_mark(response: str, answer: str) -> None:
    assert final_answer(response) == Decimal(answer)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param("14+23=37", id="no mark"),
        pytest.param("", id="nothing"),
        pytest.param("#### ", id="nothing after the mark"),
        pytest.param("#### thirty-seven", id="a word after the mark"),
        pytest.param("#### 37\n#### ", id="nothing after the last mark"),
        pytest.param("#### 1/2", id="a fraction"),
        pytest.param("#### 12,34", id="not thousands"),
        pytest.param("#### 1.2.3", id="a version"),
    ],
)
def test_a_response_without_one_number_after_the_mark_has_no_answer(response: str) -> None:
    assert final_answer(response) is None
    assert reward(response, Decimal(37)) == 0.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        pytest.param(42, "42", id="integer"),
        pytest.param(2.5, "2.5", id="float"),
        pytest.param("42", "42", id="text"),
        pytest.param(" 1,234.50 ", "1234.5", id="spaces, thousands, decimals"),
        pytest.param("-7.", "-7", id="full stop"),
        pytest.param("She sold 48/2 = <<48/2=24>>24 in May.\n#### 72", "72", id="worked solution of a public set"),
    ],
)
def test_a_reference_is_a_number_or_a_text_with_a_marked_number(answer: str | float, value: str) -> None:
    assert reference_answer(answer) == Decimal(value)


@pytest.mark.parametrize("answer", ["", "forty", "4 apples", "1/2", "#### x", "3 4", True])
def test_a_reference_that_holds_no_number_is_refused(answer: str | float) -> None:
    with pytest.raises(ValueError, match="answer"):
        reference_answer(answer)


@pytest.mark.parametrize(("response", "earned"), [("#### 42.0", 1.0), ("#### 43", 0.0), ("42", 0.0), ("#### 420", 0.0)])
def test_only_the_right_value_in_the_right_place_is_rewarded(response: str, earned: float) -> None:
    assert reward(response, Decimal(42)) == earned
