//! An entry of a key table, read by any thread of any process while its owner writes; with loom models.

use crate::api::Access;
use ucs::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// A key table entry. All fields are atomics: it may change under a reader in another process.
#[repr(C, align(64))]
#[derive(Default)]
pub struct MrEntry {
    /// Key while the entry is valid, else 0. SYNC(mr_entry): written last, with release; read first and again
    /// last.
    key: AtomicU32,
    access: AtomicU32,
    pd: AtomicU32,
    /// Descriptor of the memory file in the owner's process, or -1.
    fd: AtomicI32,
    addr: AtomicU64,
    len: AtomicU64,
    off: AtomicU64,
    /// How often all keys of this entry were used up. Written like the fields above.
    key_wraps: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<MrEntry>() == 64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub addr: u64,
    pub len: u64,
    pub access: Access,
    pub pd: u32,
    /// Descriptor and offset of the memory file, if any.
    pub file: Option<(i32, u64)>,
}

impl Region {
    /// Whether domain `pd` may access `len` bytes at `addr`.
    #[inline]
    #[cfg_attr(loom, expect(dead_code, reason = "no model asks"))]
    pub fn allows(&self, pd: u32, addr: u64, len: u64, need: Access) -> bool {
        self.pd == pd
            && self.access.contains(need)
            && len <= self.len
            && addr >= self.addr
            && addr - self.addr <= self.len - len
    }

    /// Whether peers may copy from or to it: by its key, or as a posted receive that they can map.
    #[cfg_attr(loom, expect(dead_code, reason = "no model asks"))]
    pub fn is_for_peers(&self) -> bool {
        let is_local = (Access::LOCAL_READ | Access::LOCAL_WRITE).contains(self.access);
        !is_local || self.file.is_some() && self.access.contains(Access::LOCAL_WRITE)
    }
}

impl MrEntry {
    /// Publishes `region` under the non-zero `key`. Called by the owner while the entry has no key.
    pub fn set(&self, key: u32, region: &Region) {
        let (fd, off) = region.file.unwrap_or((-1, 0));
        self.access.store(region.access.bits(), Ordering::Relaxed);
        self.pd.store(region.pd, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Relaxed);
        self.addr.store(region.addr, Ordering::Relaxed);
        self.len.store(region.len, Ordering::Relaxed);
        self.off.store(off, Ordering::Relaxed);
        // SYNC(mr_entry)
        self.key.store(key, Ordering::Release);
    }

    /// Sets the count of the next key. Called by the owner while the entry has no key.
    #[cfg_attr(loom, expect(dead_code, reason = "no model asks"))]
    pub fn set_key_wraps(&self, key_wraps: u32) {
        self.key_wraps.store(key_wraps, Ordering::Relaxed);
    }

    /// Count for its key; valid after [`get`](Self::get) found the key.
    // HOT
    #[inline]
    #[cfg_attr(loom, expect(dead_code, reason = "no model asks"))]
    pub fn key_wraps(&self) -> u32 {
        self.key_wraps.load(Ordering::Relaxed)
    }

    /// Removes the key, whatever it is. Called by the owner.
    #[cfg_attr(loom, expect(dead_code, reason = "no model asks"))]
    pub fn withdraw(&self) {
        self.key.store(0, Ordering::Relaxed);
        // SYNC(mr_entry): as in `clear`.
        fence(Ordering::Release);
    }

    /// Removes `key`; returns whether it was there. Called by the owner.
    pub fn clear(&self, key: u32) -> bool {
        if self.key.load(Ordering::Relaxed) != key {
            return false;
        }
        self.key.store(0, Ordering::Relaxed);
        // SYNC(mr_entry): a reader of fields written after this sees the key gone.
        fence(Ordering::Release);
        true
    }

    /// Region under `key`, consistent, if it is valid.
    // HOT
    #[inline]
    pub fn get(&self, key: u32) -> Option<Region> {
        // SYNC(mr_entry), SYNC(mark): after the mark of a copy, if it is marked.
        if key == 0 || self.key.load(Ordering::SeqCst) != key {
            return None;
        }
        let fd = self.fd.load(Ordering::Relaxed);
        let off = self.off.load(Ordering::Relaxed);
        let region = Region {
            addr: self.addr.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            access: Access::from_bits_retain(self.access.load(Ordering::Relaxed)),
            pd: self.pd.load(Ordering::Relaxed),
            file: (fd >= 0).then_some((fd, off)),
        };
        // SYNC(mr_entry)
        fence(Ordering::Acquire);
        (self.key.load(Ordering::Relaxed) == key).then_some(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucs::sync::{Arc, model, thread};

    /// Replaces an entry while another thread reads `key`: it finds a whole region or none.
    fn check_get_while_replaced(key: u32) {
        model(move || {
            let region = |n: u32| Region {
                addr: n.into(),
                len: n.into(),
                access: if n == 1 { Access::REMOTE_READ } else { Access::ALL },
                pd: n,
                file: Some((n as i32, n.into())),
            };
            let entry = Arc::new(MrEntry::default());
            entry.set(1, &region(1));
            let reader = {
                let entry = entry.clone();
                thread::spawn(move || entry.get(key))
            };
            assert!(entry.clear(1) && !entry.clear(1));
            entry.set(2, &region(2));
            assert!(reader.join().unwrap().is_none_or(|found| found == region(key)), "torn");
            assert_eq!((entry.get(1), entry.get(2)), (None, Some(region(2))));
        });
    }

    #[test]
    fn loom_the_old_key_finds_the_old_region_or_none() {
        check_get_while_replaced(1);
    }

    #[test]
    fn loom_the_new_key_finds_the_new_region_or_none() {
        check_get_while_replaced(2);
    }
}
