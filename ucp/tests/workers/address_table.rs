//! Addresses by number, and the numbers of senders.

use crate::common::{context, spin};
use ucp::{
    Address, AddressError, AddressTable, EpParams, Match, SharedTableError, TAG_MASK_FULL, TableAccess,
    Worker,
};

on! {
    [a_sender_is_found_without_a_connection a_sender_has_an_address a_removed_address_is_not_found several_workers_have_one_number]
    posix: "posix",
    efa: "efa",
    all: "self,posix,cma,efa",
}

/// Sends a message from `from`, and returns its sender as `to` numbers it.
fn sender(from: &Worker, to: &Worker, tag: u64) -> ucp::PeerId {
    let ep = from.connect(&to.address(), EpParams::default()).unwrap();
    ep.tag_send(tag, vec![1]).detach();
    let matching = Match::tagged(tag, TAG_MASK_FULL);
    let mut found = None;
    spin(&[from, to], &mut || {
        found = to.probe(matching);
        found.is_some()
    });
    found.unwrap().from
}

fn table_of(workers: &[&Worker]) -> AddressTable {
    let mut table = AddressTable::new();
    for (at, worker) in workers.iter().enumerate() {
        assert_eq!(table.insert(&worker.address().pack()), Ok(at as u64));
    }
    table
}

/// Peers that a worker knows.
fn peers(worker: &Worker) -> usize {
    let diagnostics = worker.diagnostics();
    (0..64).filter(|peer| diagnostics.peer_view(ucp::PeerId(*peer)).is_some()).count()
}

fn a_sender_is_found_without_a_connection(tls: &str) {
    let context = context(tls);
    let [me, other, stranger] = [(); 3].map(|()| context.worker().unwrap());
    let others: Vec<Worker> = (0..8).map(|_| context.worker().unwrap()).collect();
    let mut all: Vec<&Worker> = others.iter().collect();
    // Twice, of which the lower number is its.
    all.extend([&other, &other]);
    let mut table = table_of(&all);

    let from = sender(&other, &me, 1);
    assert_eq!(me.sender_in(&mut table, from), Some(8));
    assert_eq!(peers(&me), 1, "nobody but the sender is a peer");
    let from = sender(&stranger, &me, 2);
    assert_eq!(me.sender_in(&mut table, from), None);
    // The table grows after the first question.
    assert_eq!(table.insert(&stranger.address().pack()), Ok(10));
    assert_eq!(me.sender_in(&mut table, from), Some(10));
    // An endpoint made later is to the same peer.
    let ep = me.connect(&table.address(10).unwrap(), EpParams::default()).unwrap();
    assert_eq!(ep.peer(), from);
}

/// The address of a stranger, made of its packets, goes into a table and leads back to it.
fn a_sender_has_an_address(tls: &str) {
    let context = context(tls);
    let [me, other] = [(); 2].map(|()| context.worker().unwrap());
    let mut table = AddressTable::new();
    let from = sender(&other, &me, 1);
    assert_eq!(me.sender_in(&mut table, from), None);
    let packed = Address::of_sender(&me, from).unwrap().pack();
    assert!(packed.len() <= 64, "{}", packed.len());
    assert_eq!(table.insert(&packed), Ok(0));
    assert_eq!(me.sender_in(&mut table, from), Some(0));
    let ep = me.connect(&table.address(0).unwrap(), EpParams::default()).unwrap();
    assert_eq!((ep.peer(), peers(&me)), (from, 1));
    let sent = ep.tag_send(2, vec![7]);
    let received = other.recv(Match::tagged(2, TAG_MASK_FULL), vec![0]);
    spin(&[&me, &other], &mut || sent.is_done() && received.is_done());
    assert_eq!(Address::of_sender(&me, ucp::PeerId(77)), None);
}

fn a_removed_address_is_not_found(tls: &str) {
    let context = context(tls);
    let [me, other] = [(); 2].map(|()| context.worker().unwrap());
    let mut table = table_of(&[&other, &other]);
    table.skip();
    let from = sender(&other, &me, 1);
    for (expected, gone) in [(Some(0), 0), (Some(1), 1)] {
        assert_eq!(me.sender_in(&mut table, from), expected);
        assert!(table.remove(gone));
        assert!(!table.remove(gone));
    }
    assert_eq!(me.sender_in(&mut table, from), None);
    assert_eq!((table.end(), table.packed(2), table.address(0)), (3, None, None));
    assert!(!table.remove(2) && !table.remove(u64::MAX));
    assert_eq!(table.insert(&other.address().pack()), Ok(3));
    assert_eq!(me.sender_in(&mut table, from), Some(3));
}

#[test]
fn what_is_no_address_takes_no_number() {
    let mut table = AddressTable::new();
    assert!(table.insert(&[1, 2, 3]).is_err());
    assert_eq!((table.end(), table.address(0)), (0, None));
}

/// The bare address of libfabric names the worker, too.
#[test]
fn a_sender_is_found_by_its_efa_address() {
    let context = context("efa");
    let [me, other] = [(); 2].map(|()| context.worker().unwrap());
    let raw = other.address().efa_raw().unwrap();
    assert!(Address::unpack(&raw).is_ok());
    let mut table = AddressTable::new();
    assert_eq!(table.insert(&raw), Ok(0));
    assert_eq!(me.sender_in(&mut table, sender(&other, &me, 1)), Some(0));
}

fn several_workers_have_one_number(tls: &str) {
    let context = context(tls);
    let me = context.worker().unwrap();
    let members: Vec<Worker> = (0..3).map(|_| context.worker().unwrap()).collect();
    let other = context.worker().unwrap();
    let mut table = table_of(&[&other]);
    let packed: Vec<u8> = members.iter().flat_map(|worker| worker.address().pack()).collect();
    assert_eq!(table.insert(&packed), Ok(1));
    assert!(table.insert(&packed[..packed.len() - 1]).is_err() && table.insert(&[]).is_err());
    for (nth, worker) in members.iter().enumerate() {
        assert_eq!(table.address_of(1, nth).unwrap().uid(), worker.address().uid());
        let from = sender(worker, &me, nth as u64);
        assert_eq!(me.sender_in(&mut table, from), Some(1), "member {nth}");
    }
    assert_eq!((table.address_of(1, 3), table.address_of(2, 0)), (None, None));
    assert_eq!(table.address(1).unwrap().uid(), members[0].address().uid());
    assert!(table.remove(1));
    let from = sender(&members[2], &me, 9);
    assert_eq!(me.sender_in(&mut table, from), None);
}

/// Two tables of one name, here in one process, and a third that only reads.
#[test]
fn tables_of_one_name_have_the_same_addresses() {
    let context = context("posix");
    let workers: Vec<Worker> = (0..3).map(|_| context.worker().unwrap()).collect();
    let packed: Vec<Vec<u8>> = workers.iter().map(|worker| worker.address().pack()).collect();
    let name = format!("test/{}", std::process::id());
    let open = |access| AddressTable::open_shared(&name, access);
    assert!(matches!(open(TableAccess::Read), Err(SharedTableError::NotThere)));
    let mut first = open(TableAccess::Write).unwrap();
    assert_eq!(first.insert(&packed[0]), Ok(0));
    let mut second = open(TableAccess::Write).unwrap();
    assert_eq!(second.packed(0), Some(&packed[0][..]));
    first.skip();
    assert_eq!(second.insert(&packed[1]), Ok(2));
    assert_eq!((first.packed(2), second.packed(1)), (None, None));
    assert_eq!(first.insert(&packed[2]), Ok(3));
    assert_eq!(first.packed(2), Some(&packed[1][..]));

    let mut reader = open(TableAccess::Read).unwrap();
    assert!(reader.is_shared() && reader.is_read_only() && reader.end() == 4);
    let kind = std::io::ErrorKind::PermissionDenied;
    assert_eq!(reader.insert(&packed[0]), Err(AddressError::NotShared { kind }));
    assert!(!reader.remove(0));
    // The sender is found in what another one has inserted since.
    assert!(first.remove(2));
    let from = sender(&workers[1], &workers[0], 1);
    assert_eq!(workers[0].sender_in(&mut second, from), Some(2));
    second.refresh().unwrap();
    assert_eq!(workers[0].sender_in(&mut second, from), None);
    assert_eq!(first.insert(&packed[1]), Ok(4));
    assert_eq!(workers[0].sender_in(&mut second, from), Some(4));

    // Whoever is last removes it.
    drop((first, second));
    assert_eq!(open(TableAccess::Read).unwrap().end(), 5);
    drop(reader);
    assert!(matches!(open(TableAccess::Read), Err(SharedTableError::NotThere)));
    assert_eq!(open(TableAccess::Write).unwrap().end(), 0);
}
