//! Regions: no request, however its addresses and lengths are chosen, reaches a byte outside of what its key names.

use proptest::prelude::*;

use super::*;
use crate::wire::RmaIov;

const WIRE: WireId = WireId(0);

fn region(bytes: &mut [u8], access: Access) -> Region {
    // SAFETY: the tests keep `bytes` and do not touch it while the region is used.
    unsafe { Region::new(bytes.as_mut_ptr(), bytes.len(), access) }.unwrap()
}

#[test]
fn keys_name_one_life_of_one_region() {
    let mut bytes = [0u8; 16];
    let mut regions = Regions::new(7);
    let region = region(&mut bytes, Access::READ);
    let key = regions.add(region).unwrap();
    assert!(key.0 > u64::from(u32::MAX));
    let iov = |key| Iovs::one(RmaIov { addr: region.addr(), len: 16, key });
    assert!(regions.resolve(WIRE, &iov(key.0), Access::READ).is_some());
    assert!(regions.resolve(WIRE, &iov(key.0), Access::WRITE).is_none());
    assert!(regions.resolve(WIRE, &iov(key.0 & 0xffff_ffff), Access::READ).is_none());
    assert!(regions.resolve(WIRE, &iov(key.0 ^ 1 << 40), Access::READ).is_none());
    assert!(regions.also(key, WIRE, 5));
    let spans = regions.resolve(WIRE, &iov(5), Access::READ).unwrap();
    assert!(regions.resolve(WireId(1), &iov(5), Access::READ).is_none());
    assert!(spans.uses(regions.remove(key).unwrap()));
    assert!(regions.resolve(WIRE, &iov(5), Access::READ).is_none());
    let again = regions.add(region).unwrap();
    assert_ne!(again, key);
    assert!(regions.resolve(WIRE, &iov(key.0), Access::READ).is_none());
    assert!(regions.remove(key).is_none());
}

#[test]
fn elements_change_wherever_they_lie() {
    for size in [1usize, 2, 4, 8, 16, 32] {
        for shift in 0..9 {
            let mut bytes = [1u8; 64];
            let mut regions = Regions::new(0);
            let region = region(&mut bytes, Access::all());
            let key = regions.add(region).unwrap().0;
            let iov = RmaIov { addr: region.addr() + shift, len: 32, key };
            let spans = regions.resolve(WIRE, &Iovs::one(iov), Access::ATOMIC).unwrap();
            let mut old = vec![0; size];
            spans.update(0, 0, size, &mut old, |b| b.iter_mut().for_each(|b| *b += 1));
            assert_eq!(old, vec![1; size]);
            // Not inside the piece, or not there at all.
            spans.update(0, 33 - size, size, &mut old, |b| b.fill(9));
            spans.update(1, 0, size, &mut old, |b| b.fill(9));
            let want: Vec<u8> =
                (0..64).map(|i| 1 + u8::from(i >= shift && i < shift + size as u64)).collect();
            assert_eq!(bytes.to_vec(), want);
        }
    }
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
    /// The region lies between two fences of bytes that must never change, nor be read.
    #[test]
    fn hostile_iovs_stay_inside(
        picks in prop::collection::vec((edge(1 << 20), edge(0), 0usize..4), 1..5),
        at in edge(0),
        data in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut bytes = [0xaau8; 192];
        let base = bytes.as_mut_ptr();
        // SAFETY: the middle third of `bytes`, which is not looked at while the region is used.
        let middle = unsafe { Region::new(base.wrapping_add(64), 64, Access::all()) }.unwrap();
        let mut regions = Regions::new(3);
        let key = regions.add(middle).unwrap().0;
        regions.also(MemKey(key), WIRE, 77);
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
        let spans = regions.resolve(WIRE, &iovs, Access::WRITE);
        prop_assert_eq!(spans.is_some(), iovs.as_slice().iter().all(fits));
        if let Some(spans) = spans {
            spans.put(at, &data);
            spans.put(0, &data);
            let mut out = vec![0x11; 150];
            let n = spans.copy_to(at, &mut out);
            prop_assert!(n as u64 <= spans.len());
            for piece in 0..5 {
                let mut old = [0; 8];
                spans.update(piece, at as usize, 8, &mut old, |b| b.fill(5));
            }
        }
        drop(regions);
        prop_assert!(bytes[..64].iter().chain(&bytes[128..]).all(|&b| b == 0xaa));
    }
}
