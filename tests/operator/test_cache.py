"""What is known: never older than it was, and put right by lists."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epochal_operator.cache import Cache


def item(kind: str = "Pod", name: str = "a", uid: str = "u", version: int = 1, stream: str = "s") -> dict[str, Any]:
    labels = {"epochal.dev/stream": stream} if stream else {}
    metadata = {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"kind": kind, "metadata": metadata}


def test_an_older_version_is_no_news() -> None:
    cache = Cache()
    assert cache.put(item(version=5))
    assert not cache.put(item(version=5))
    assert not cache.put(item(version=4))
    assert cache.put(item(version=6))
    assert cache.find(item()) == item(version=6)


def test_what_is_gone_does_not_come_back_and_its_successor_stays() -> None:
    cache = Cache()
    cache.put(item(uid="old", version=1))
    cache.put(item(uid="new", version=9))
    assert not cache.drop(item(uid="old", version=1))
    assert cache.find(item()) == item(uid="new", version=9)
    assert cache.drop(item(uid="new", version=10))
    assert not cache.put(item(uid="new", version=8))
    assert cache.find(item()) is None


def test_a_list_shows_what_is_new_and_what_is_gone() -> None:
    cache = Cache()
    for name in ("stays", "gone", "newer"):
        cache.put(item(name=name, uid=name, version=9 if name == "newer" else 1))
    news = cache.replace("Pod", ["n"], [item(name="stays", uid="stays"), item(name="made", uid="made", version=4)], 5)
    assert sorted(each["metadata"]["name"] for each in news) == ["gone", "made"]
    assert cache.find(item(name="newer")) is not None, "it was made after the list"
    assert cache.find(item(name="gone")) is None


def test_what_only_lost_its_label_is_known_again_when_it_is_asked_for() -> None:
    """Lists and watches choose by label. What was deleted after the question stays gone, whatever the answer says."""
    cache = Cache()
    somebody_elses = item(uid="theirs", stream="")
    cache.put(somebody_elses)
    for _ in range(3):
        cache.replace("Pod", ["n"], [], 99)
        assert not cache.put(somebody_elses), "a late event of a watch"
        asked = cache.dropped
        assert cache.put(somebody_elses, asked)
        assert cache.find(item()) == somebody_elses
    asked = cache.dropped
    cache.drop(somebody_elses)
    assert not cache.put(somebody_elses, asked), "the answer is older than the end"


def test_a_late_event_of_what_was_there_before_does_not_hide_its_successor() -> None:
    cache = Cache()
    cache.put(item(uid="new", version=9))
    assert not cache.put(item(uid="old", version=8))
    assert cache.find(item()) == item(uid="new", version=9)


def test_what_a_later_list_has_is_there_whatever_was_said_before() -> None:
    cache = Cache()
    cache.put(item())
    asked = cache.dropped
    cache.drop(item())
    assert cache.replace("Pod", ["n"], [item()], 5, asked) == [], "the list is older than the end"
    assert cache.replace("Pod", ["n"], [item()], 5, cache.dropped) == [item()]
    assert cache.find(item()) == item()


def test_a_list_of_one_namespace_says_nothing_about_others() -> None:
    cache = Cache()
    cache.put(item())
    assert cache.replace("Pod", ["other"], [], 99) == []
    assert cache.replace("Service", [], [], 99) == []
    assert len(cache.replace("Pod", [], [], 99)) == 1


def test_children_are_those_with_the_label_or_the_name() -> None:
    cache = Cache()
    cache.put(item(name="labelled", uid="1"))
    cache.put(item(name="named", uid="2", stream=""))
    cache.put(item(name="other", uid="3", stream="t"))
    found = cache.children("n", "s", {("Pod", "named")})
    assert sorted(each["metadata"]["name"] for each in found) == ["labelled", "named"]
    cache.put(item(name="labelled", uid="1", version=2, stream="t"))
    cache.drop(item(name="other", uid="3"))
    assert cache.children("n", "s", set()) == []
    assert [each["metadata"]["name"] for each in cache.children("n", "t", set())] == ["labelled"]


@given(st.permutations([1, 2, 3, 4, 5]), st.integers(1, 6))
def test_in_whatever_order_events_come_the_last_version_stays(order: list[int], ended: int) -> None:
    cache = Cache()
    for version in order:
        if version == ended:
            cache.drop(item(version=version))
        else:
            cache.put(item(version=version))
    assert cache.find(item()) == (None if ended <= 5 else item(version=5))
