use proptest::prelude::*;

use super::*;

fn name(n: u32) -> SlotId {
    SlotId::from_raw(n)
}

/// Posts a receive at the end of the store; answers its index.
fn post(queue: &mut ExpectedQueue, wants: &mut Vec<MatchEntry>, pattern: Pattern) -> u32 {
    let place = queue.place(wants, pattern);
    wants.push(place.entry());
    let at = wants.len() as u32 - 1;
    place.fill(wants, at);
    at
}

#[test]
fn oldest_receive_matches_first() {
    let (mut queue, mut wants) = (ExpectedQueue::new(), Vec::new());
    let exact = Pattern { tag: 5, mask: !0, from: None };
    for pattern in [exact, Pattern::ANY, exact] {
        post(&mut queue, &mut wants, pattern);
    }
    let mut take = |tag| queue.take(&mut wants, tag, PeerId(0));
    assert_eq!([take(5), take(5), take(6), take(5), take(5)], [Some(0), Some(1), None, Some(2), None]);
}

#[test]
fn source_filter_is_applied() {
    let (mut queue, mut wants) = (ExpectedQueue::new(), Vec::new());
    post(&mut queue, &mut wants, Pattern { tag: 5, mask: !0, from: Some(PeerId(1)) });
    assert_eq!(queue.take(&mut wants, 5, PeerId(3)), None);
    post(&mut queue, &mut wants, Pattern { tag: 0, mask: 0, from: Some(PeerId(2)) });
    assert_eq!((wants[0].source(), wants[1].source()), (Some(PeerId(1)), Some(PeerId(2))));
    assert_eq!(queue.take(&mut wants, 5, PeerId(3)), None);
    assert_eq!(queue.take(&mut wants, 5, PeerId(2)), Some(1));
    assert_eq!(queue.take(&mut wants, 5, PeerId(1)), Some(0));
}

#[test]
fn rehash_keeps_order() {
    let (mut expected, mut wants, mut arrived) = (ExpectedQueue::new(), Vec::new(), UnexpectedQueue::new());
    for n in 0..5000 {
        post(&mut expected, &mut wants, Pattern { tag: u64::from(n % 7), mask: !0, from: None });
        arrived.push(u64::from(n % 7), PeerId(n % 3), name(n));
    }
    for n in (0..5000).filter(|n| n % 7 == 3) {
        assert_eq!(expected.take(&mut wants, 3, PeerId(0)), Some(n));
        let exact = Pattern { tag: 3, mask: !0, from: None };
        assert_eq!(arrived.find(&exact, |from| from), Some(name(n)));
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
        let (mut queue, mut wants) = (ExpectedQueue::new(), Vec::new());
        let mut model: Vec<(Pattern, u32)> = Vec::new();
        for (n, (step, pattern, tag, from)) in steps.into_iter().enumerate() {
            let from = PeerId(from);
            match step {
                0 | 1 => model.push((pattern, post(&mut queue, &mut wants, pattern))),
                2 => {
                    let want = model.iter().position(|(p, _)| p.fits(tag, from));
                    prop_assert_eq!(queue.find(&mut wants, tag, from), want.map(|i| model[i].1));
                    let want = want.map(|i| model.remove(i).1);
                    // The fast path either finds the same, or leaves all as it was.
                    let short = queue.first(tag).and_then(|first| {
                        let at = first.at;
                        first.take(&wants[at as usize].clone(), tag, from).map(|()| at)
                    });
                    let found = short.or_else(|| queue.take(&mut wants, tag, from));
                    prop_assert_eq!(found, want);
                }
                _ if !model.is_empty() => {
                    let (_, at) = model.remove(n % model.len());
                    queue.remove(&mut wants, at);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn unexpected_behaves_like_a_list(
        steps in prop::collection::vec((0u8..4, pattern(), 0u64..4, 0u32..2), 0..200)
    ) {
        let mut queue = UnexpectedQueue::new();
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
                    prop_assert_eq!(queue.find(&pattern, |from| from), want.map(|i| model[i].2));
                    if let Some(i) = want && step == 2 {
                        queue.remove(model.remove(i).3);
                    }
                }
            }
            prop_assert_eq!(queue.is_empty(), model.is_empty());
        }
    }
}
