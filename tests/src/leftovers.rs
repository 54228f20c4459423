//! Files and sockets that processes of this user have left: in /dev/shm, in the sockets' temporary directory,
//! and abstract names. Compared before and after something was killed. Never removes anything.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// The names found at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers(BTreeSet<String>);

impl Leftovers {
    /// Lists the names for which `ours` holds.
    pub fn now(ours: impl Fn(&str) -> bool) -> Leftovers {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            names.insert(format!("/dev/shm/{}", entry.file_name().to_string_lossy()));
        }
        names.extend(unix_names());
        names.retain(|name| ours(name));
        Leftovers(names)
    }

    /// New names since then. Waits up to `timeout` for them to vanish: killed processes take a moment.
    pub fn since(&self, timeout: Duration, ours: impl Fn(&str) -> bool) -> Vec<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let left: Vec<String> = Leftovers::now(&ours).0.difference(&self.0).cloned().collect();
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Names of bound unix sockets; abstract ones begin with `@`.
fn unix_names() -> impl Iterator<Item = String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names: Vec<String> =
        table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7)).map(str::to_owned).collect();
    names.into_iter().filter(|name| !name.is_empty())
}

/// Whether a name may be this project's, by its spelling or as a file in /dev/shm.
pub fn of_this_project(name: &str) -> bool {
    let file = Path::new(name).file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
    name.starts_with("/dev/shm/")
        || ["ucx", "uct", "ucp", "softefa", "posix"].iter().any(|w| file.contains(w))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn bound_socket_name_is_found_until_closed() {
        let name = format!("softefa.leftovers-test.{}", std::process::id());
        let ours = |n: &str| n.contains(&name);
        let before = Leftovers::now(ours);
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        assert_eq!(before.since(Duration::ZERO, ours), [format!("@{name}")]);
        assert!(of_this_project(&format!("@{name}")));
        drop(listener);
        assert!(before.since(Duration::from_secs(5), ours).is_empty());
    }
}
