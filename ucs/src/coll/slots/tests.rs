//! Slots: stale and foreign ids, limits, and a random walk against a map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn trimmed_slots_give_memory_back_and_keep_ids_stale() {
    let mut slots: Slots<u32> = Slots::with_limit(1000);
    let ids: Vec<SlotId> = (0..1000).map(|n| slots.insert(n).unwrap()).collect();
    slots.trim(0);
    assert_eq!((slots.capacity(), slots.get(ids[700])), (1024, Some(&700)), "not empty");
    for &id in &ids {
        let _ = slots.remove(id);
    }
    slots.trim(300);
    assert_eq!(slots.capacity(), 512);
    let again: Vec<SlotId> = (0..1000).map(|n| slots.insert(n).unwrap()).collect();
    assert!(slots.insert(0).is_err(), "the limit stays");
    assert!(ids.iter().all(|&id| slots.get(id).is_none()), "kept ids are stale");
    assert!(again.iter().zip(0..).all(|(&id, n)| slots.get(id) == Some(&n)));
}

#[test]
fn stale_and_unknown_ids_are_rejected() {
    let mut slots: Slots<&str> = Slots::new();
    assert_eq!(slots.get(SlotId::from_raw(0)), None);
    let a = slots.insert("a").unwrap();
    assert_ne!(a, SlotId::NONE);
    assert_eq!(slots.get(a), Some(&"a"));
    assert_eq!(slots.remove(a), Some("a"));
    assert_eq!(slots.get(a), None);
    assert_eq!(slots.remove(a), None);
    let b = slots.insert("b").unwrap();
    assert_eq!(Slots::<&str>::index_of(a), Slots::<&str>::index_of(b), "LIFO reuse");
    assert_eq!(slots.get(a), None);
    assert_eq!(slots.get(SlotId::from_raw(u32::MAX)), None);
    assert_eq!(slots.get(SlotId::from_raw(b.raw() + 1)), None);
}

#[test]
fn generation_wraps_past_zero() {
    let mut slots: Slots<u32, 30> = Slots::new();
    for n in 0..10 {
        let id = slots.insert(n).unwrap();
        assert_ne!(id, SlotId::NONE);
        assert_eq!(slots.remove(id), Some(n));
        assert_eq!(slots.get(id), None);
    }
}

#[test]
fn limit_gives_the_value_back() {
    let mut slots: Slots<u32> = Slots::with_limit(300);
    slots.reserve_total(300);
    for n in 0..300 {
        slots.insert(n).unwrap();
    }
    assert!(slots.is_full());
    assert_eq!(slots.insert(7), Err(7));
    assert_eq!(slots.insert_with(|_| unreachable!("called at the limit")), None);
    // Reserved chunks are used last first: which slot a value gets is not promised.
    let (mut seen, mut last) = (Vec::new(), None);
    slots.drain(|id, n| {
        assert!(last < Some(Slots::<u32>::index_of(id)), "in order of slot number");
        last = Some(Slots::<u32>::index_of(id));
        seen.push(n);
    });
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..300) && slots.is_empty());
}

#[test]
fn insert_with_sees_its_own_id() {
    let mut slots: Slots<SlotId> = Slots::new();
    let id = slots.insert_with(|id| id).unwrap();
    assert_eq!(slots.get(id), Some(&id));
}

#[test]
fn elements_do_not_move_when_it_grows() {
    let mut slots: Slots<u64> = Slots::new();
    let first = slots.insert(1).unwrap();
    let at = std::ptr::from_ref(slots.get(first).unwrap());
    for n in 0..5000 {
        slots.insert(n).unwrap();
    }
    assert_eq!(at, std::ptr::from_ref(slots.get(first).unwrap()));
}

proptest! {
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec((0u8..4, any::<u32>()), 1..600)) {
        let mut slots: Slots<u32, 10> = Slots::with_limit(400);
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        let mut dead: Vec<SlotId> = Vec::new();
        for (step, n) in steps {
            match step {
                0 | 1 => match slots.insert(n) {
                    Ok(id) => prop_assert_eq!(model.insert(id.raw(), n), None),
                    Err(back) => prop_assert_eq!((back, model.len()), (n, 400)),
                },
                2 => {
                    let id = model.keys().nth(n as usize % model.len().max(1)).copied();
                    if let Some(id) = id {
                        prop_assert_eq!(slots.remove(SlotId::from_raw(id)), model.remove(&id));
                        dead.push(SlotId::from_raw(id));
                    }
                }
                _ => {
                    prop_assert_eq!(slots.get(SlotId::from_raw(n)), model.get(&n));
                }
            }
            prop_assert_eq!(slots.len(), model.len());
        }
        for id in dead {
            prop_assert_eq!(slots.get(id), model.get(&id.raw()));
        }
        let all: BTreeMap<u32, u32> = slots.iter().map(|(id, v)| (id.raw(), *v)).collect();
        prop_assert_eq!(all, model);
    }
}

#[test]
fn a_renewed_element_stays_under_another_id() {
    let mut slots: Slots<u32, 30> = Slots::new();
    let mut id = slots.insert(7).unwrap();
    for _ in 0..10 {
        let next = slots.renew(id).unwrap().0;
        assert_ne!(next, SlotId::NONE);
        assert_eq!((slots.get(id), slots.get(next)), (None, Some(&7)));
        assert_eq!(slots.renew(id), None);
        id = next;
    }
    assert_eq!((slots.len(), slots.remove(id), slots.len()), (1, Some(7), 0));
    assert_eq!(slots.renew(id), None);
}

#[test]
fn halves_never_issue_the_same_id() {
    let mut lower: Slots<(), 28, LOWER> = Slots::new();
    let mut upper: Slots<(), 28, UPPER> = Slots::new();
    for _ in 0..40 {
        let (a, b) = (lower.insert(()).unwrap(), upper.insert(()).unwrap());
        assert_eq!((a.raw() >> 31, b.raw() >> 31), (0, 1));
        assert!(a != SlotId::NONE && !upper.contains(a) && !lower.contains(b));
        let (a2, b2) = (lower.renew(a).unwrap().0, upper.renew(b).unwrap().0);
        assert!(a2 != a && b2 != b && a2.raw() >> 31 == 0 && b2.raw() >> 31 == 1);
        lower.remove(a2).unwrap();
        upper.remove(b2).unwrap();
    }
}

#[test]
fn ids_stay_in_their_half() {
    fn lives<const HALF: u8>(top: u32) {
        let mut slots: Slots<(), 28, HALF> = Slots::new();
        let at = |id| Slots::<(), 28, HALF>::index_of(id);
        for _ in 0..20 {
            let mut id = slots.insert(()).unwrap();
            let mut seen = vec![id];
            slots.occupied(at(id)).unwrap().end();
            id = slots.insert(()).unwrap();
            seen.push(id);
            id = slots.renew_if(id, |()| Some(())).unwrap().0;
            seen.push(id);
            id = slots.renew(id).unwrap().0;
            seen.push(id);
            assert!(slots.discard(id));
            id = slots.insert(()).unwrap();
            seen.push(id);
            slots.remove(id).unwrap();
            assert!(seen.iter().all(|id| id.raw() >> 30 == top && *id != SlotId::NONE), "{seen:?}");
        }
    }
    lives::<LOWER_EVEN>(0);
    lives::<LOWER_ODD>(1);
}

#[test]
fn an_element_is_dropped_in_place() {
    let mut slots: Slots<String> = Slots::new();
    let a = slots.insert("a".into()).unwrap();
    let b = slots.insert("b".into()).unwrap();
    let at = Slots::<String>::index_of(b);
    assert_eq!((slots.at(at).map(String::as_str), slots.id_at(at)), (Some("b"), Some(b)));
    if let Some(b) = slots.at_mut(at) {
        b.push('c');
    }
    assert_eq!(slots.occupied(at).map(|mut look| look.element().len()), Some(2), "looked at, and left");
    let mut look = slots.occupied(at).unwrap();
    assert_eq!(std::mem::take(look.element()), "bc");
    look.end();
    assert_eq!((slots.get(b), slots.at(at), slots.id_at(at), slots.len()), (None, None, None, 1));
    assert!(slots.occupied(at).is_none() && slots.occupied(900).is_none());
    let c = slots.insert("c".into()).unwrap();
    assert_eq!(Slots::<String>::index_of(c), at, "its slot is the next one used");
    assert!(c != b && slots.contains(a));
}
