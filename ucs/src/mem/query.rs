//! Describes the mapping at an address by `/proc/self/smaps`. For set-up and tools, never on a hot path.

use std::io::{BufRead, BufReader};

/// The mapping an address lies in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappingInfo {
    /// First byte.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    /// Whether writes are seen by other processes that map the same file.
    pub shared: bool,
    /// Whether it may be written.
    pub writable: bool,
    /// Bytes in a page of it.
    pub page: usize,
    /// The file behind it, or a name such as `[heap]`; empty for anonymous memory.
    pub name: String,
}

/// The mapping that holds the byte at `addr`; `None` if there is none, or the system does not tell.
pub fn mapping_at(addr: usize) -> Option<MappingInfo> {
    let file = std::fs::File::open("/proc/self/smaps").ok()?;
    find(BufReader::new(file), addr)
}

#[cfg(test)]
pub(super) fn mapped_bytes(addr: usize) -> Option<usize> {
    field(BufReader::new(std::fs::File::open("/proc/self/smaps").ok()?), addr, "Rss:")
}

#[cfg(test)]
pub(super) fn field(smaps: impl BufRead, addr: usize, name: &str) -> Option<usize> {
    let mut inside = false;
    for line in smaps.lines().map_while(Result::ok) {
        if let Some(stretch) = head(&line) {
            inside = addr.wrapping_sub(stretch.start) < stretch.len;
        } else if inside && let Some(kib) = line.strip_prefix(name) {
            return Some(kib.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10);
        }
    }
    None
}

fn find(smaps: impl BufRead, addr: usize) -> Option<MappingInfo> {
    let mut found: Option<MappingInfo> = None;
    for line in smaps.lines() {
        let line = line.ok()?;
        match (&mut found, head(&line)) {
            (Some(_), Some(_)) => break,
            (None, Some(stretch)) if addr.wrapping_sub(stretch.start) < stretch.len => found = Some(stretch),
            (Some(stretch), None) => {
                let kib =
                    line.strip_prefix("KernelPageSize:").and_then(|rest| rest.trim().strip_suffix(" kB"));
                if let Some(kib) = kib.and_then(|n| n.trim().parse::<usize>().ok()) {
                    stretch.page = kib << 10;
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

fn head(line: &str) -> Option<MappingInfo> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let rights = words.next()?;
    let name = words.nth(3).unwrap_or_default();
    Some(MappingInfo {
        start,
        len: end.checked_sub(start)?,
        shared: rights.contains('s'),
        writable: rights.contains('w'),
        page: super::page::page_size(),
        name: name.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{MapOpts, SharedMem};
    use super::*;

    #[test]
    fn a_listing_is_read() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nKernelPageSize:        4 kB\n\
                    3000-203000 rw-s 00000000 00:01 77 /memfd:heap (deleted)\nKernelPageSize:     2048 kB\n";
        let second = find(text.as_bytes(), 0x3000).unwrap();
        assert_eq!((second.start, second.len, second.page), (0x3000, 0x20_0000, 2 << 20));
        assert_eq!((second.shared, second.writable, &*second.name), (true, true, "/memfd:heap"));
        assert!(!find(text.as_bytes(), 0x2fff).unwrap().shared);
        assert_eq!(find(text.as_bytes(), 0x20_3000), None);
    }

    #[test]
    fn our_own_memory_is_found() {
        let mem = SharedMem::create("query", 8192, MapOpts::default()).unwrap();
        let stretch = mapping_at(mem.as_ptr().addr() + 5000).unwrap();
        assert!(stretch.shared && stretch.writable && stretch.len >= 8192 && stretch.name.contains("query"));
        assert_eq!(mapping_at(8), None);
    }
}
