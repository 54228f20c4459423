//! Access rights of this process's memory, asked of the system. For set-up, never on a hot path. Hardware
//! pins the pages of a region, and refuses what is not mapped or may not be written. Software that pins
//! nothing asks here instead, which fills no page.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

/// `struct procmap_query` of the kernel (Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev: [u32; 2],
    name_and_build_id_size: [u32; 2],
    name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 3 << 30 | 104 << 16 | (b'f' as libc::c_ulong) << 8 | 17;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// Whether every byte of the range is mapped, readable, and with `write` also writable. True where the system
/// does not tell. Costs about 5 µs, before Linux 6.11 more.
pub fn may_access(addr: usize, len: usize, write: bool) -> bool {
    let Some(end) = addr.checked_add(len) else { return false };
    let Ok(mut maps) = File::open("/proc/self/maps") else { return true };
    match ask(&maps, addr as u64, end as u64, write) {
        Some(answer) => answer,
        None => {
            let mut text = String::new();
            maps.read_to_string(&mut text).is_err() || covers(&text, addr as u64, end as u64, write)
        }
    }
}

/// Whether every byte of the range is mapped, readable, and with `write` also writable, with its pages, which
/// it fills. Costs one system call where the kernel can do that (Linux 5.14), else as [`may_access`].
pub fn populate(addr: usize, len: usize, write: bool) -> bool {
    let Some(end) = addr.checked_add(len) else { return false };
    let from = addr & !(super::page::page_size() - 1);
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: fills pages; no byte of the program changes, and nothing is unmapped.
    let done = unsafe { libc::madvise(std::ptr::without_provenance_mut(from), end - from, advice) };
    if done == 0 {
        return true;
    }
    // An older kernel, or pages of a device, which it does not fill.
    let errno = std::io::Error::last_os_error().raw_os_error();
    matches!(errno, Some(libc::EINVAL)) && may_access(addr, len, write)
}

/// Asks for one mapping after the other; `None` if the kernel cannot answer.
fn ask(maps: &File, addr: u64, end: u64, write: bool) -> Option<bool> {
    let need = READABLE | if write { WRITABLE } else { 0 };
    let mut at = addr;
    while at < end {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: need,
            query_addr: at,
            ..Default::default()
        };
        // SAFETY: the kernel reads and writes this structure, of the size given in it.
        let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        if done != 0 {
            // No mapping there with these rights; else the call is unknown.
            let none = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
            return none.then_some(false);
        }
        at = query.vma_end.max(at + 1);
    }
    Some(true)
}

/// As [`ask`], from the text of the file.
fn covers(text: &str, addr: u64, end: u64, write: bool) -> bool {
    let mut at = addr;
    for line in text.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
            continue;
        };
        if at >= end || from > at {
            break;
        }
        if to > at {
            if !rest.starts_with(if write { "rw" } else { "r" }) {
                return false;
            }
            at = to;
        }
    }
    at >= end
}

#[cfg(test)]
mod tests {
    use super::*;

    static READ_ONLY: [u8; 64] = [7; 64];

    #[test]
    fn rights_are_those_of_the_mappings() {
        let mut there = vec![0u8; 1 << 20];
        let at = there.as_mut_ptr() as usize;
        assert!(may_access(at, there.len(), true));
        assert!(!may_access(4096, 1, false));
        assert!(!may_access(usize::MAX - 1, 4, false));
        let constant = READ_ONLY.as_ptr() as usize;
        assert!(may_access(constant, READ_ONLY.len(), false));
        assert!(!may_access(constant, READ_ONLY.len(), true));
        for write in [true, false] {
            assert!(populate(at + 1, there.len() - 1, write));
            assert!(!populate(4096, 1, write) && !populate(usize::MAX - 1, 4, write));
            assert!(!populate(1, usize::MAX - 1, write));
            assert_eq!(populate(constant, READ_ONLY.len(), write), !write);
        }
    }

    #[test]
    fn the_text_is_read_like_the_call() {
        let text = "1000-3000 rw-p 0 00:00 0\n3000-4000 r--p 0 00:00 0 /lib/x y\n5000-6000 rw-p 0 00:00 0\n";
        for (addr, end, write, is) in [
            (0x1000, 0x3000, true, true),
            (0x1800, 0x3800, false, true),
            (0x1800, 0x3800, true, false),
            (0x3000, 0x4001, false, false),
            (0x0fff, 0x1001, false, false),
            (0x5000, 0x6000, true, true),
            (0x5000, 0x6001, false, false),
            (0x4000, 0x4001, false, false),
        ] {
            assert_eq!(covers(text, addr, end, write), is, "{addr:x} to {end:x}, {write}");
        }
        let mut text = String::new();
        File::open("/proc/self/maps").unwrap().read_to_string(&mut text).unwrap();
        let constant = READ_ONLY.as_ptr() as u64;
        assert!(
            covers(&text, constant, constant + 64, false) && !covers(&text, constant, constant + 64, true)
        );
    }
}
