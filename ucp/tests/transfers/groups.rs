//! Collective operations of groups, on every lane.

use ucp::{Address, AtomicOp, Context, Datatype, Error, Group, GroupError, GroupMaker, GroupRequest, Worker};

use crate::common::{bytes, context, source, spin};

const AM_ID: u16 = 3;

on! {
    [every_operation a_slow_member other_lengths a_member_that_closes a_death_in_a_larger_group
     a_flood_of_early_messages]
    own: "self,posix",
    posix: "posix",
    posix_cma: "posix,cma",
    efa: "efa",
    reorder: "reorder",
}

struct Members {
    _context: Context,
    workers: Vec<Worker>,
    makers: Vec<GroupMaker>,
    addresses: Vec<Address>,
}

impl Members {
    fn on(tls: &str, number: usize) -> Members {
        Members::with(&context(tls), number)
    }

    fn with(context: &Context, number: usize) -> Members {
        let workers: Vec<Worker> = (0..number).map(|_| context.worker().unwrap()).collect();
        let makers = workers.iter().map(|worker| GroupMaker::new(worker, AM_ID)).collect();
        let addresses = workers.iter().map(Worker::address).collect();
        Members { _context: context.clone(), workers, makers, addresses }
    }

    fn groups(&self) -> Vec<Group> {
        self.makers.iter().map(|maker| maker.group(&self.addresses).unwrap()).collect()
    }

    fn until(&self, done: impl FnMut() -> bool) {
        let workers: Vec<&Worker> = self.workers.iter().collect();
        spin(&workers, &mut { done });
    }

    /// Runs an operation in every member, and returns what each gets.
    fn all(&self, groups: &[Group], start: impl Fn(&Group) -> GroupRequest) -> Vec<Result<Vec<u8>, Error>> {
        let requests: Vec<GroupRequest> = groups.iter().map(start).collect();
        self.until(|| requests.iter().all(GroupRequest::is_done));
        requests.into_iter().map(|request| request.test().unwrap_or_else(|_| panic!("it is done"))).collect()
    }
}

fn every_operation(tls: &str) {
    for number in [1, 2, 3] {
        let members = Members::on(tls, number);
        let groups = members.groups();
        assert!(
            groups.iter().enumerate().all(|(rank, group)| (group.rank(), group.size()) == (rank, number))
        );
        let of = |len: usize| (0..number).map(|rank| bytes(rank as u64 + 1, len)).collect::<Vec<_>>();
        let nothing = vec![Ok(Vec::new()); number];
        assert_eq!(members.all(&groups, Group::barrier), nothing);
        for len in [0, 8, 5000, 300_000] {
            let data = of(len);
            let whole = data.concat();
            let root = number - 1;
            let at = |got: Vec<u8>| {
                (0..number).map(move |rank| Ok(if rank == root { got.clone() } else { vec![] }))
            };
            let got = members.all(&groups, |group| group.broadcast(root, data[group.rank()].clone()));
            assert!(got == vec![Ok(data[root].clone()); number], "broadcast of {len}");
            let got = members.all(&groups, |group| group.all_gather(data[group.rank()].clone()));
            assert!(got == vec![Ok(whole.clone()); number], "all_gather of {len}");
            let got = members.all(&groups, |group| group.gather(root, data[group.rank()].clone()));
            assert!(got == at(whole.clone()).collect::<Vec<_>>(), "gather of {len}");
            let got = members.all(&groups, |group| {
                let data = if group.rank() == root { whole.clone() } else { Vec::new() };
                group.scatter(root, data, len)
            });
            assert!(got == data.iter().cloned().map(Ok).collect::<Vec<_>>(), "scatter of {len}");
            let long = of(len * number);
            let got = members.all(&groups, |group| group.all_to_all(long[group.rank()].clone()));
            for (rank, got) in got.into_iter().enumerate() {
                let pieces: Vec<&[u8]> = long.iter().map(|data| &data[rank * len..][..len]).collect();
                assert!(got == Ok(pieces.concat()), "all_to_all of {len}");
            }
            let sum = |data: &[Vec<u8>]| -> Vec<u8> {
                (0..data[0].len())
                    .map(|at| data.iter().fold(0u8, |sum, one| sum.wrapping_add(one[at])))
                    .collect()
            };
            let add = (AtomicOp::Sum, Datatype::Uint8);
            let got =
                members.all(&groups, |group| group.all_reduce(add.0, add.1, data[group.rank()].clone()));
            assert!(got == vec![Ok(sum(&data)); number], "all_reduce of {len}");
            let got =
                members.all(&groups, |group| group.reduce(root, add.0, add.1, data[group.rank()].clone()));
            assert!(got == at(sum(&data)).collect::<Vec<_>>(), "reduce of {len}");
            let got =
                members.all(&groups, |group| group.reduce_scatter(add.0, add.1, long[group.rank()].clone()));
            let sums = sum(&long);
            let pieces = (0..number).map(|rank| Ok(sums[rank * len..][..len].to_vec()));
            assert!(got == pieces.collect::<Vec<_>>(), "reduce_scatter of {len}");
        }
        let refused = [
            groups[0].broadcast(number, Vec::new()),
            groups[0].all_reduce(AtomicOp::CompareSwap, Datatype::Uint8, vec![0]),
            groups[0].all_reduce(AtomicOp::BitAnd, Datatype::Float, vec![0; 4]),
            groups[0].all_reduce(AtomicOp::Sum, Datatype::Uint64, vec![0; 7]),
            groups[0].scatter(0, vec![0; 5], 7),
        ];
        assert!(refused.into_iter().all(|request| request.wait() == Err(Error::Invalid)));
        assert_eq!(members.all(&groups, Group::barrier), nothing, "what is refused has no number");
    }
}

/// Members run ahead of one that has made no group yet: their messages wait for it, in two groups of the same
/// workers.
fn a_slow_member(tls: &str) {
    let members = Members::on(tls, 3);
    let make = |rank: usize| {
        let groups = [0, 1].map(|_| members.makers[rank].group(&members.addresses).unwrap());
        let all = [7, 9].map(|of| {
            let requests = groups.each_ref().map(|group| group.all_gather(vec![of * (rank as u8 + 1); 100]));
            let sent = groups.each_ref().map(|group| group.broadcast(0, vec![of + rank as u8; 3000]));
            (requests, sent)
        });
        (groups, all)
    };
    let (fast, other) = (make(0), make(2));
    for _ in 0..1000 {
        members.workers.iter().for_each(|worker| _ = worker.progress());
    }
    assert!(fast.1.iter().all(|(gathered, _)| gathered.iter().all(|request| !request.is_done())));
    let slow = make(1);
    let mut groups = Vec::new();
    for (of_rank, all) in [fast, slow, other] {
        groups.push(of_rank);
        for ((gathered, sent), of) in all.into_iter().zip([7u8, 9]) {
            members.until(|| gathered.iter().chain(&sent).all(GroupRequest::is_done));
            let whole: Vec<u8> = (1..4).flat_map(|rank| vec![of * rank; 100]).collect();
            assert!(gathered.into_iter().all(|request| request.wait() == Ok(whole.clone())));
            assert!(sent.into_iter().all(|request| request.wait() == Ok(vec![of; 3000])));
        }
    }
}

/// A member that sends another length than expected fails the operation of those that it reaches, and not
/// the next one.
fn other_lengths(tls: &str) {
    let members = Members::on(tls, 2);
    let groups = members.groups();
    let got = members.all(&groups, |group| group.all_gather(vec![1; 10 + group.rank()]));
    assert_eq!(
        got,
        [Err(Error::Truncated { len: 11, room: 10 }), Err(Error::Truncated { len: 10, room: 11 })]
    );
    assert!(members.all(&groups, Group::barrier).iter().all(Result::is_ok));
    let strangers = members.makers[0].group(&members.addresses[1..]);
    assert!(matches!(strangers, Err(GroupError::NotAMember)), "{strangers:?}");
    let twice = [0, 1, 1].map(|at: usize| members.addresses[at].clone());
    assert!(matches!(members.makers[0].group(&twice), Err(GroupError::Twice)));
}

/// Operations that wait for a member which has closed end with an error, and so do later ones.
fn a_member_that_closes(tls: &str) {
    let mut members = Members::on(tls, 3);
    let mut groups = members.groups();
    assert!(members.all(&groups, Group::barrier).iter().all(Result::is_ok));
    let waiting = [groups[0].broadcast(2, vec![0; 5]), groups[1].barrier()];
    drop(groups.pop());
    drop(members.makers.pop());
    members.workers.pop().unwrap().close();
    members.until(|| waiting.iter().all(GroupRequest::is_done));
    for request in waiting {
        request.wait().unwrap_err();
    }
    let late = groups[0].gather(0, vec![1]);
    members.until(|| late.is_done());
    late.wait().unwrap_err();
    // Those that are left go on.
    let dropped = groups[1].barrier();
    drop(groups);
    assert!(dropped.is_done());
    dropped.wait().unwrap_err();
}

/// Operations of two groups wait, and a member of the larger one closes: that group's operation ends with an
/// error, and the other one's goes on.
fn a_death_in_a_larger_group(tls: &str) {
    let mut members = Members::on(tls, 3);
    let mut larger = members.groups();
    let smaller = [0, 1].map(|rank: usize| members.makers[rank].group(&members.addresses[..2]).unwrap());
    assert!(members.all(&larger, Group::barrier).iter().all(Result::is_ok));
    let (waits, goes_on) = (larger[0].barrier(), smaller[0].barrier());
    drop(larger.pop());
    drop(members.makers.pop());
    members.workers.pop().unwrap().close();
    members.until(|| waits.is_done());
    waits.wait().unwrap_err();
    assert!(!goes_on.is_done());
    let other = smaller[1].barrier();
    members.until(|| goes_on.is_done() && other.is_done());
    assert_eq!([goes_on.wait(), other.wait()], [Ok(Vec::new()), Ok(Vec::new())]);
}

/// A member that runs ahead of one that begins nothing exceeds the limit of unexpected messages, and fails.
/// The receiver frees the messages of the failed member, and another member goes on.
fn a_flood_of_early_messages(tls: &str) {
    const LEN: usize = 1 << 20;
    let source = source(tls).with("UCX_UNEXP_MEM", "1m").with("UCX_UNEXP_MAX", "8m");
    let members = Members::with(&Context::configured(source).unwrap(), 3);
    let groups = [0, 1, 2].map(|rank: usize| members.makers[rank].group(&members.addresses).unwrap());
    let quiet = groups[2].broadcast(2, vec![5; 100]);
    let unexpected = || members.workers[1].diagnostics().unexpected_bytes();
    let mut sent: Vec<GroupRequest> = Vec::new();
    let mut begun = 0;
    members.until(|| {
        if begun < 200 && sent.iter().all(GroupRequest::is_done) {
            sent = vec![groups[0].broadcast(0, vec![3; LEN])];
            begun += 1;
        }
        assert!(unexpected() <= 16 << 20, "{} bytes", unexpected());
        begun > 20 && sent.iter().all(GroupRequest::is_done)
    });
    members.until(|| unexpected() < LEN);
    let lost = groups[1].broadcast(0, Vec::new());
    members.until(|| lost.is_done());
    let error = lost.wait().unwrap_err();
    assert!(matches!(error, Error::OverLimit(_)) && error.to_string().contains("UCX_UNEXP_MAX"), "{error}");
    drop(sent);
    // A group of the others still works. The first operation of `quiet` came before the flood.
    members.until(|| quiet.is_done());
    let small = [1, 2].map(|rank: usize| members.makers[rank].group(&members.addresses[1..]).unwrap());
    let both = small.each_ref().map(Group::barrier);
    members.until(|| both.iter().all(GroupRequest::is_done));
    assert!(both.into_iter().all(|request| request.wait().is_ok()));
}
