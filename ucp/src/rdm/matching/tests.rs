use proptest::prelude::*;

use super::*;

fn name(n: u32) -> SlotId {
    SlotId::from_raw(n)
}

#[test]
fn the_oldest_receive_wins_whichever_list_it_is_in() {
    let mut queue = Expected::new();
    let exact = Pattern { tag: 5, mask: !0, from: None };
    queue.push(exact, name(1));
    queue.push(Pattern::ANY, name(2));
    queue.push(exact, name(3));
    assert_eq!(queue.take(5, PeerId(0)), Some(name(1)));
    assert_eq!(queue.take(5, PeerId(0)), Some(name(2)));
    assert_eq!(queue.take(6, PeerId(0)), None);
    assert_eq!(queue.take(5, PeerId(0)), Some(name(3)));
    assert_eq!(queue.take(5, PeerId(0)), None);
}

#[test]
fn a_source_filter_is_kept() {
    let mut queue = Expected::new();
    queue.push(Pattern { tag: 5, mask: !0, from: Some(PeerId(1)) }, name(1));
    queue.push(Pattern { tag: 0, mask: 0, from: Some(PeerId(2)) }, name(2));
    assert_eq!(queue.take(5, PeerId(3)), None);
    assert_eq!(queue.take(5, PeerId(2)), Some(name(2)));
    assert_eq!(queue.take(5, PeerId(1)), Some(name(1)));
}

#[test]
fn growing_keeps_the_order() {
    let (mut expected, mut arrived) = (Expected::new(), Arrived::new());
    for n in 0..5000 {
        expected.push(Pattern { tag: u64::from(n % 7), mask: !0, from: None }, name(n));
        arrived.push(u64::from(n % 7), PeerId(n % 3), name(n));
    }
    for n in (0..5000).filter(|n| n % 7 == 3) {
        assert_eq!(expected.take(3, PeerId(0)), Some(name(n)));
        let exact = Pattern { tag: 3, mask: !0, from: None };
        assert_eq!(arrived.find(&exact), Some(name(n)));
        arrived.remove(n);
    }
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let mask = prop_oneof![Just(!0u64), Just(0u64), Just(0b10u64)];
    (0u64..4, mask, prop::option::of(0u32..2)).prop_map(|(tag, mask, from)| Pattern {
        tag,
        mask,
        from: from.map(PeerId),
    })
}

proptest! {
    #[test]
    fn expected_behaves_like_a_list(
        steps in prop::collection::vec((0u8..4, pattern(), 0u64..4, 0u32..2), 0..200)
    ) {
        let mut queue = Expected::new();
        let mut model: Vec<(Pattern, SlotId, u32)> = Vec::new();
        for (n, (step, pattern, tag, from)) in steps.into_iter().enumerate() {
            let op = name(n as u32 + 1);
            match step {
                0 | 1 => {
                    let at = queue.push(pattern, op);
                    model.push((pattern, op, at));
                }
                2 => {
                    let want = model.iter().position(|(p, _, _)| p.fits(tag, PeerId(from)));
                    let want = want.map(|i| model.remove(i).1);
                    prop_assert_eq!(queue.take(tag, PeerId(from)), want);
                }
                _ if !model.is_empty() => {
                    let (_, _, at) = model.remove(n % model.len());
                    queue.remove(at);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn arrived_behaves_like_a_list(
        steps in prop::collection::vec((0u8..4, pattern(), 0u64..4, 0u32..2), 0..200)
    ) {
        let mut queue = Arrived::new();
        let mut model: Vec<(u64, PeerId, SlotId, u32)> = Vec::new();
        for (n, (step, pattern, tag, from)) in steps.into_iter().enumerate() {
            let op = name(n as u32 + 1);
            match step {
                0 | 1 => {
                    let at = queue.push(tag, PeerId(from), op);
                    model.push((tag, PeerId(from), op, at));
                }
                _ => {
                    let want = model.iter().position(|&(tag, from, _, _)| pattern.fits(tag, from));
                    prop_assert_eq!(queue.find(&pattern), want.map(|i| model[i].2));
                    if let Some(i) = want && step == 2 {
                        queue.remove(model.remove(i).3);
                    }
                }
            }
            prop_assert_eq!(queue.is_empty(), model.is_empty());
        }
    }
}
