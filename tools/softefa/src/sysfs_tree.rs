//! The files of `/sys` that clients read, in a temporary folder per run that the cleanup process removes.

use crate::pci;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use ucs::sys::{ProcId, host, proc};

const PREFIX: &str = "softefa-sys";

/// A topology for hwloc, where the machine lacks the address of the first device.
const TOPOLOGY: &str = "hwloc.xml";

pub struct SysfsTree(PathBuf);

impl SysfsTree {
    pub fn make(devices: &[String]) -> io::Result<SysfsTree> {
        let dir = std::env::temp_dir();
        remove_stale(&dir);
        let me = ProcId::current();
        let uid = rustix::process::getuid().as_raw();
        let root = dir.join(tree_name(uid, host::pid_namespace(), me));
        std::fs::DirBuilder::new().mode(0o700).create(&root)?;
        let tree = SysfsTree(root);
        tree.fill(devices)?;
        Ok(tree)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// File with the topology that programs need to find the devices' addresses, if any.
    pub fn topology(&self) -> Option<PathBuf> {
        Some(self.0.join(TOPOLOGY)).filter(|path| path.exists())
    }

    pub fn leave_to_cleanup(self) {
        std::mem::forget(self);
    }

    fn fill(&self, devices: &[String]) -> io::Result<()> {
        let dir = |path: &str| std::fs::create_dir_all(self.0.join(path));
        let file = |path: &str, text: &str| std::fs::write(self.0.join(path), format!("{text}\n"));
        let link = |path: &str, to: &str| symlink(to, self.0.join(path));
        dir("bus/pci/drivers/efa")?;
        dir("class/infiniband")?;
        dir("class/infiniband_verbs")?;
        file("class/infiniband_verbs/abi_version", "6")?;
        let functions = Path::new(pci::FUNCTIONS);
        let addresses = pci::addresses(functions, devices.len());
        if !pci::has_first(functions) {
            file(TOPOLOGY, &pci::topology(&addresses))?;
        }
        for (n, (name, address)) in devices.iter().zip(&addresses).enumerate() {
            let pci = format!("devices/pci{}/{address}", &address[..7]);
            let ib = format!("{pci}/infiniband/{name}");
            dir(&format!("{ib}/ports/1/gid_attrs/types"))?;
            file(&format!("{pci}/vendor"), "0x1d0f")?;
            file(&format!("{pci}/device"), "0xefa0")?;
            file(&format!("{pci}/current_link_width"), "16")?;
            file(&format!("{pci}/current_link_speed"), "16.0 GT/s PCIe")?;
            link(&format!("{pci}/driver"), "../../../bus/pci/drivers/efa")?;
            link(&format!("{ib}/device"), "../..")?;
            link(&format!("class/infiniband/{name}"), &format!("../../{ib}"))?;
            dir(&format!("class/infiniband_verbs/uverbs{n}"))?;
            file(&format!("class/infiniband_verbs/uverbs{n}/ibdev"), name)?;
        }
        Ok(())
    }
}

impl Drop for SysfsTree {
    fn drop(&mut self) {
        // The next run removes what is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Name of the tree of a process. A pid says nothing outside of its namespace, whose number it contains.
fn tree_name(uid: u32, namespace: u64, owner: ProcId) -> String {
    format!("{PREFIX}.{uid}.{namespace}.{}.{}", owner.pid, owner.start)
}

/// Process that made a tree, by the tree's name; `None` if it is not of this user and pid namespace.
fn owner(name: &str, uid: u32) -> Option<ProcId> {
    let (pid, start) =
        name.rsplit_once('.').and_then(|(rest, start)| Some((rest.rsplit_once('.')?.1, start)))?;
    let owner = ProcId { pid: pid.parse().ok()?, start: start.parse().ok()? };
    let namespace = host::pid_namespace();
    // Unknown: then no tree is known to be one's own.
    (namespace != 0 && name == tree_name(uid, namespace, owner)).then_some(owner)
}

fn remove_stale(dir: &Path) {
    let uid = rustix::process::getuid().as_raw();
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Some(owner) = entry.file_name().to_str().and_then(|name| owner(name, uid)) else { continue };
        let ours = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid);
        if ours && proc::start_time(owner.pid).is_ok_and(|start| start != Some(owner.start)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlinks_resolve_as_clients_expect() {
        let tree = SysfsTree::make(&["softefa0".into()]).unwrap();
        let ib = tree.path().join("class/infiniband/softefa0");
        let driver = ib.join("device/driver").canonicalize().unwrap();
        assert_eq!(driver.file_name().unwrap(), "efa");
        let pci = ib.join("device").canonicalize().unwrap();
        assert_eq!(pci.file_name().unwrap(), "0000:00:00.0");
        assert_eq!(tree.topology().is_some(), !Path::new("/sys/bus/pci/devices/0000:00:00.0").exists());
        let root = tree.path().to_path_buf();
        drop(tree);
        assert!(!root.exists());
    }

    #[test]
    fn trees_of_dead_processes_are_removed() {
        let dir = std::env::temp_dir().join(format!("softefa-test-{}", std::process::id()));
        let uid = rustix::process::getuid().as_raw();
        let (me, other) = (ProcId::current(), u64::MAX);
        let (here, elsewhere) = (host::pid_namespace(), host::pid_namespace() + 1);
        let gone = ProcId { start: other, ..me };
        let dead = dir.join(tree_name(uid, here, gone));
        let alive = dir.join(tree_name(uid, here, me));
        // Its process is not seen from here, and may live.
        let of_a_container = dir.join(tree_name(uid, elsewhere, gone));
        let foreign = dir.join("something-else");
        for d in [&dead, &alive, &of_a_container, &foreign] {
            std::fs::create_dir_all(d).unwrap();
        }
        remove_stale(&dir);
        assert_eq!((dead.exists(), alive.exists(), foreign.exists()), (false, true, true));
        assert!(of_a_container.exists(), "the tree of another pid namespace was removed");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
