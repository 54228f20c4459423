//! Regions: no request, however its addresses and lengths are chosen, reaches a byte outside of what its key
//! names.

use proptest::prelude::*;

use std::sync::Arc;

use super::*;
use crate::rdm::ids::DomainId;
use crate::rdm::rma::mem_table::MemTable;
use crate::rdm::rma::regions::Regions;
use crate::wire::{Iovs, RmaIov};

const DOMAIN: DomainId = DomainId(0);

fn table(nonce: u32) -> (Arc<MemTable>, Regions) {
    let table = Arc::new(MemTable::new(nonce));
    let regions = Regions::new(table.clone());
    (table, regions)
}

fn region(bytes: &mut [u8], access: Access) -> Region {
    // SAFETY: the tests keep `bytes` and do not touch it while the region is used.
    unsafe { Region::new(bytes.as_mut_ptr(), bytes.len(), access) }.unwrap()
}

#[test]
fn stale_and_foreign_keys_are_rejected() {
    let mut bytes = [0u8; 16];
    let (table, mut regions) = table(7);
    let region = region(&mut bytes, Access::READ);
    let key = table.add(region).unwrap();
    assert!(key.0 > u64::from(u32::MAX));
    regions.update();
    let iov = |key| Iovs::one(RmaIov { addr: region.addr(), len: 16, key });
    assert!(regions.resolve(DOMAIN, &iov(key.0), Access::READ).is_some());
    assert!(regions.resolve(DOMAIN, &iov(key.0), Access::WRITE).is_none());
    assert!(regions.resolve(DOMAIN, &iov(key.0 & 0xffff_ffff), Access::READ).is_none());
    assert!(regions.resolve(DOMAIN, &iov(key.0 ^ 1 << 40), Access::READ).is_none());
    assert!(table.add_device_key(key, DOMAIN, 5));
    regions.update();
    let spans = regions.resolve(DOMAIN, &iov(5), Access::READ).unwrap();
    assert!(regions.resolve(DomainId(1), &iov(5), Access::READ).is_none());
    assert!(table.remove(key));
    assert!(regions.update().into_iter().all(|gone| spans.uses(gone)));
    assert!(regions.resolve(DOMAIN, &iov(5), Access::READ).is_none());
    let again = table.add(region).unwrap();
    assert_ne!(again, key);
    regions.update();
    assert!(regions.resolve(DOMAIN, &iov(key.0), Access::READ).is_none());
    assert!(!table.remove(key));
}

#[test]
fn atomics_change_unaligned_elements_in_every_piece() {
    fn with<const N: usize>() {
        for shift in 0..9 {
            let mut bytes = [1u8; 80];
            let (table, mut regions) = table(0);
            let region = region(&mut bytes, Access::all());
            let key = table.add(region).unwrap().0;
            regions.update();
            // Two pieces of one element and of two, and less than one that is left.
            let iov =
                |at: usize, len: usize| RmaIov { addr: region.addr() + at as u64, len: len as u64, key };
            let iovs = Iovs::try_from([iov(shift, N), iov(40 + shift, 2 * N - 1)].as_slice()).unwrap();
            let spans = regions.resolve(DOMAIN, &iovs, Access::ATOMIC).unwrap();
            let (mut old, operands) = (vec![0; 2 * N], [2; 64]);
            let all = |now: [u8; N], with: [u8; N], than: [u8; N]| {
                assert_eq!((with, than), ([2; N], [0; N]));
                Some(now.map(|b| b + 1))
            };
            spans.update(&operands, &[], &mut old, all);
            let whole = if N == 1 { 1 } else { (2 * N - 1) / N };
            let changed = |i: usize| {
                (shift..shift + N).contains(&i) || (40 + shift..40 + shift + whole * N).contains(&i)
            };
            let want: Vec<u8> = (0..80).map(|i| 1 + u8::from(changed(i))).collect();
            assert_eq!((old, bytes.to_vec()), (vec![1; 2 * N], want.clone()));
            // What is left as it is, is not written; nobody need want the old ones.
            spans.update(&[], &[], &mut [], |_: [u8; N], _, _| None);
            assert_eq!(bytes.to_vec(), want);
        }
    }
    with::<1>();
    with::<2>();
    with::<4>();
    with::<8>();
    with::<16>();
}

fn edge(base: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0u64..200).prop_map(move |d| base.wrapping_add(d).wrapping_sub(60)),
        1 => any::<u64>(),
        1 => Just(u64::MAX),
        1 => Just(0),
    ]
}

proptest! {
    #[test]
    fn hostile_iovs_stay_in_the_region(
        picks in prop::collection::vec((edge(1 << 20), edge(0), 0usize..4), 1..5),
        at in edge(0),
        data in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut bytes = [0xaau8; 192];
        let base = bytes.as_mut_ptr();
        // SAFETY: the middle third of `bytes`, which is not looked at while the region is used.
        let middle = unsafe { Region::new(base.wrapping_add(64), 64, Access::all()) }.unwrap();
        let (table, mut regions) = table(3);
        let key = table.add(middle).unwrap().0;
        table.add_device_key(MemKey(key), DOMAIN, 77);
        regions.update();
        let keys = [key, 77, key + 1, 0];
        let mut iovs = Vec::new();
        for (addr, len, which) in picks {
            let addr = addr.wrapping_sub(1 << 20).wrapping_add(middle.addr());
            iovs.push(RmaIov { addr, len, key: keys[which] });
        }
        let iovs = Iovs::try_from(iovs.as_slice()).unwrap();
        let fits = |iov: &RmaIov| {
            let (from, to) = (u128::from(iov.addr), u128::from(iov.addr) + u128::from(iov.len));
            let (low, high) = (u128::from(middle.addr()), u128::from(middle.addr()) + 64);
            iov.len == 0 || ((iov.key == key || iov.key == 77) && from >= low && to <= high)
        };
        let spans = regions.resolve(DOMAIN, &iovs, Access::WRITE);
        prop_assert_eq!(spans.is_some(), iovs.as_slice().iter().all(fits));
        if let Some(spans) = spans {
            spans.put(at, &data);
            spans.put(0, &data);
            let mut out = vec![0x11; 150];
            let n = spans.copy_to(at, &mut out);
            prop_assert!(n as u64 <= spans.len());
            let mut old = [0; 100];
            spans.update(&data, &data[data.len() / 2..], &mut old, |_: [u8; 8], with, _| Some(with));
            spans.update(&data, &[], &mut old, |_: [u8; 16], with, _| Some(with));
        }
        drop(regions);
        prop_assert!(bytes[..64].iter().chain(&bytes[128..]).all(|&b| b == 0xaa));
    }
}
