//! PCI addresses of the devices in the sysfs tree. MPI libraries look a NIC's address up in hwloc, and Intel
//! MPI and MPICH do not survive one that is not there.
//!
//! The first device is at [`FIRST`]. A machine with PCI has a function of that address, its host bridge.
//! MPICH takes it for "no address" and looks nothing up: the hwloc in its package sees no PCI at all. Where
//! the machine has no such function, `softefa run` gives hwloc a topology that has it ([`topology`]).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use ucs::sys::CpuSet;

/// Functions of the machine.
pub const FUNCTIONS: &str = "/sys/bus/pci/devices";
/// CPUs of the machine.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Address of the first device.
pub const FIRST: &str = "0000:00:00.0";
/// Start of the class of network controllers.
const NETWORK: &str = "0x02";

/// Whether the machine has a function at [`FIRST`].
pub fn has_first(functions: &Path) -> bool {
    functions.join(FIRST).exists()
}

/// Addresses for `count` devices: the first, then other functions of the machine, network cards before
/// others, then invented ones.
pub fn addresses(functions: &Path, count: usize) -> Vec<String> {
    let class = |name: &str| fs::read_to_string(functions.join(name).join("class")).unwrap_or_default();
    let names = fs::read_dir(functions).into_iter().flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name != FIRST && is_address(name));
    names.sort_by_cached_key(|name| (!class(name).starts_with(NETWORK), name.clone()));
    let invented = (0..count).map(|n| format!("0000:ff:{:02x}.0", 0x10 + n));
    [FIRST.to_owned()].into_iter().chain(names).chain(invented).take(count).collect()
}

/// `dddd:bb:dd.f`, as programs parse it.
fn is_address(name: &str) -> bool {
    let shape = |(at, c): (usize, char)| match at {
        4 | 7 => c == ':',
        10 => c == '.',
        _ => c.is_ascii_hexdigit(),
    };
    name.len() == FIRST.len() && name.chars().enumerate().all(shape)
}

/// A topology for hwloc, as XML: the CPUs of this machine as cores of one package, and the devices.
pub fn topology(addresses: &[String]) -> String {
    let online = fs::read_to_string(ONLINE).ok().and_then(|text| CpuSet::parse(text.trim()).ok());
    let cpus = online.or_else(|| CpuSet::allowed().ok()).unwrap_or_default();
    describe(cpus.as_slice(), addresses)
}

fn describe(cpus: &[usize], addresses: &[String]) -> String {
    let sets = |cpus: &[usize]| {
        let set = bitmap(cpus);
        format!("cpuset=\"{set}\" complete_cpuset=\"{set}\" nodeset=\"0x1\" complete_nodeset=\"0x1\"")
    };
    let (all, whole) = (sets(cpus), bitmap(cpus));
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n\
         <object type=\"Machine\" os_index=\"0\" {all} allowed_cpuset=\"{whole}\" allowed_nodeset=\"0x1\" gp_index=\"1\">\n\
         <object type=\"Package\" os_index=\"0\" {all} gp_index=\"2\">\n\
         <object type=\"NUMANode\" os_index=\"0\" {all} gp_index=\"3\" local_memory=\"{}\"/>\n",
        ucs::mem::avail::available().unwrap_or(1 << 30),
    );
    // Writing to a string cannot fail.
    for (n, cpu) in cpus.iter().enumerate() {
        let (own, index) = (sets(&[*cpu]), 2 * n);
        let _ = writeln!(
            xml,
            "<object type=\"Core\" os_index=\"{cpu}\" {own} gp_index=\"{}\"><object type=\"PU\" os_index=\"{cpu}\" {own} \
             gp_index=\"{}\"/></object>",
            1000 + index,
            1001 + index,
        );
    }
    xml.push_str("</object>\n");
    for (n, address) in addresses.iter().enumerate() {
        let (domain, bus) = (&address[..4], &address[5..7]);
        let _ = writeln!(
            xml,
            "<object type=\"Bridge\" gp_index=\"{}\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"{domain}:[{bus}-{bus}]\"><object \
             type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"{address}\" pci_type=\"0200 [1d0f:efa0] [0000:0000] 00\" \
             pci_link_speed=\"0.000000\"/></object>",
            10 + 2 * n,
            11 + 2 * n,
        );
    }
    xml.push_str("</object>\n</topology>\n");
    xml
}

/// A set of CPUs in hwloc's notation: words of 32 bits, the highest first.
fn bitmap(cpus: &[usize]) -> String {
    let last = cpus.iter().max().map_or(0, |cpu| cpu / 32);
    let word =
        |n: usize| cpus.iter().filter(|cpu| *cpu / 32 == n).fold(0u32, |word, cpu| word | 1 << (cpu % 32));
    let words: Vec<String> = (0..=last).rev().map(|n| format!("0x{:08x}", word(n))).collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_take_the_addresses_of_functions() {
        let dir = std::env::temp_dir().join(format!("softefa-pci-{}", std::process::id()));
        for (name, class) in [
            (FIRST, "0x060000"),
            ("0000:00:01.0", "0x010000"),
            ("0000:00:03.0", "0x020000"),
            ("not an address", "0x020000"),
        ] {
            fs::create_dir_all(dir.join(name)).unwrap();
            fs::write(dir.join(name).join("class"), class).unwrap();
        }
        assert!(has_first(&dir));
        assert_eq!(addresses(&dir, 4), [FIRST, "0000:00:03.0", "0000:00:01.0", "0000:ff:10.0"]);
        fs::remove_dir_all(&dir).unwrap();
        assert!(!has_first(&dir));
        assert_eq!(addresses(&dir, 2), [FIRST, "0000:ff:10.0"]);
    }

    #[test]
    fn a_topology_has_the_cpus_and_the_devices() {
        assert_eq!(bitmap(&[0, 1, 33]), "0x00000002,0x00000003");
        let xml = describe(&[0, 2], &[FIRST.to_owned(), "0000:ff:10.0".to_owned()]);
        for part in [
            "cpuset=\"0x00000005\"",
            "<object type=\"PU\" os_index=\"2\" cpuset=\"0x00000004\"",
            "pci_busid=\"0000:00:00.0\"",
            "bridge_pci=\"0000:[ff-ff]\"",
        ] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
        assert_eq!(
            xml.matches("<object").count() - xml.matches("/>").count(),
            xml.matches("</object>").count()
        );
    }
}
