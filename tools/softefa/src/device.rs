//! Device list and contexts. Hides real RDMA devices: libfabric 1.17 fails if one in the list is not an EFA.

use crate::abi::{IbvContext, IbvContextOps, IbvDevice, VerbsContext};
use crate::context::Context;
use crate::errno::{complain, errno_of_open, ret_ptr, set_errno};
use crate::query::COMP_VECTORS;
use crate::{cq, post, qp, query};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use ucs::config::{Auto, Source, Table};
use uct::efa::dev::soft::{self, SoftConfig};

/// Used without a launcher's tree.
const SYSFS: &str = "/sys";
const NODE_UNSPECIFIED: c_int = 7;
const TRANSPORT_UNSPECIFIED: c_int = 4;

/// Devices of this process: created at first use, never moved or freed.
struct Devices(Vec<DeviceEntry>);

struct DeviceEntry {
    abi: IbvDevice,
    name: String,
}

// SAFETY: an entry is written once, before it is shared; what points into it only reads.
unsafe impl Sync for Devices {}
// SAFETY: as above; its pointers are function pointers of the C layout, all null.
unsafe impl Send for Devices {}

/// Loads the `SOFTEFA_` keys only: others may belong to a UCX in the same process.
fn settings() -> Result<Source, String> {
    let ours = std::env::vars_os().filter(|(k, _)| k.to_str().is_some_and(|k| k.starts_with("SOFTEFA_")));
    Source::from_vars(ours).map_err(|e| e.to_string())
}

fn text<const N: usize>(value: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, byte) in out.iter_mut().take(N - 1).zip(value.bytes()) {
        *to = byte as c_char;
    }
    out
}

fn entry(n: usize, name: String) -> DeviceEntry {
    let root = std::env::var("SYSFS_PATH").unwrap_or_else(|_| SYSFS.into());
    let dev_name = format!("uverbs{n}");
    let abi = IbvDevice {
        ops: [None; 2],
        node_type: NODE_UNSPECIFIED,
        transport_type: TRANSPORT_UNSPECIFIED,
        name: text(&name),
        dev_path: text(&format!("{root}/class/infiniband_verbs/{dev_name}")),
        dev_name: text(&dev_name),
        ibdev_path: text(&format!("{root}/class/infiniband/{name}")),
    };
    DeviceEntry { abi, name }
}

fn devices() -> &'static [DeviceEntry] {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    let make = || {
        // Device warnings go to standard error.
        let _ = ucs::trace::init(&Source::empty());
        let found = settings().and_then(|source| soft::list(&source).map_err(|e| e.to_string()));
        let found = found.unwrap_or_else(|e| {
            ucs::stderr_line!("softefa: no device: {e}");
            Vec::new()
        });
        Devices(found.into_iter().enumerate().map(|(n, d)| entry(n, d.name)).collect())
    };
    &DEVICES.get_or_init(make).0
}

pub fn is_dev_name(name: &[u8]) -> bool {
    let number = name.strip_prefix(b"uverbs").and_then(|n| std::str::from_utf8(n).ok());
    number.and_then(|n| n.parse().ok()).is_some_and(|n: usize| n < devices().len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut IbvDevice {
    let all = devices();
    let list = all.iter().map(|d| (&raw const d.abi).cast_mut());
    let list: Box<[*mut IbvDevice]> = list.chain([std::ptr::null_mut()]).collect();
    // SAFETY: by this function's contract.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = all.len() as c_int;
    }
    Box::into_raw(list).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut IbvDevice) {
    if list.is_null() {
        return;
    }
    let whole = std::ptr::slice_from_raw_parts_mut(list, devices().len() + 1);
    // SAFETY: made by Box::into_raw of a slice of this length.
    drop(unsafe { Box::from_raw(whole) });
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut IbvDevice) -> *const c_char {
    if device.is_null() {
        return std::ptr::null();
    }
    device.cast::<u8>().wrapping_add(std::mem::offset_of!(IbvDevice, name)).cast()
}

/// The devices are not in the kernel's list.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: *mut IbvDevice) -> c_int {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_device: *mut IbvDevice) -> u64 {
    0
}

fn verbs_context(device: *mut IbvDevice, events: c_int) -> VerbsContext {
    VerbsContext {
        query_port: Some(query::query_port),
        newer: [None; 24],
        create_cq_ex: Some(cq::create_ex),
        private: std::ptr::null_mut::<c_void>(),
        query_device_ex: Some(query::query_device_ex),
        flows: [None; 5],
        create_qp_ex: Some(qp::create_qp_ex),
        older: [None; 4],
        placeholder: 0,
        sz: size_of::<VerbsContext>(),
        context: IbvContext {
            device,
            ops: IbvContextOps {
                before_poll: [None; 11],
                poll_cq: Some(cq::poll_cq),
                req_notify_cq: Some(cq::req_notify_cq),
                after_notify: [None; 7],
                post_srq_recv: None,
                before_send: [None; 4],
                post_send: Some(post::post_send),
                post_recv: Some(post::post_recv),
                after_recv: [None; 5],
            },
            cmd_fd: -1,
            async_fd: events,
            num_comp_vectors: COMP_VECTORS,
            mutex: [0; 5],
            abi_compat: std::ptr::without_provenance_mut(usize::MAX),
        },
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut IbvDevice) -> *mut IbvContext {
    let ours = devices().iter().find(|d| std::ptr::eq(&raw const d.abi, device));
    let Some(entry) = ours else { return ret_ptr(Err(libc::ENODEV)) };
    let opened = settings()
        .map_err(|e| {
            complain(&e);
            libc::EINVAL
        })
        .and_then(|source| {
            let config = SoftConfig::load(&source).ok();
            let watch = config.as_ref().is_some_and(|config| config.watch_memory);
            if config.is_some_and(|config| config.guard_memory == Auto::Auto) {
                // Where the processor has no guard, copies are as they were.
                let _ = ucs::mem::guard::install();
            }
            let opened = soft::open(&source, &entry.name).map_err(|e| {
                complain(&format!("{} cannot be opened: {e}", entry.name));
                errno_of_open(&e)
            });
            opened.map(|dev| (dev, watch))
        });
    ret_ptr(opened.and_then(|(dev, watch)| Context::open(dev, watch, |events| verbs_context(device, events))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(ctx: *mut IbvContext) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { Context::close(ctx) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    let make = || {
        let root = std::env::var("SYSFS_PATH").unwrap_or_else(|_| SYSFS.into());
        CString::new(root).unwrap_or_default()
    };
    PATH.get_or_init(make).as_ptr()
}

/// Reads a small file without its line end. Returns the length, or -1.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: by this function's contract.
    let dir = unsafe { std::ffi::CStr::from_ptr(dir) };
    // SAFETY: by this function's contract.
    let file = unsafe { std::ffi::CStr::from_ptr(file) };
    let path = format!("{}/{}", dir.to_string_lossy(), file.to_string_lossy());
    let read = match std::fs::read(path) {
        Ok(read) => read,
        Err(e) => {
            set_errno(e.raw_os_error().unwrap_or(libc::EIO));
            return -1;
        }
    };
    let read = read.strip_suffix(b"\n").unwrap_or(&read);
    if read.len() >= size {
        set_errno(libc::ENOSPC);
        return -1;
    }
    // SAFETY: `read` and an end of string fit the buffer.
    unsafe { std::ptr::copy_nonoverlapping(read.as_ptr(), buf.cast::<u8>(), read.len()) };
    let end = buf.wrapping_add(read.len());
    // SAFETY: as above.
    unsafe { end.write(0) };
    read.len() as c_int
}
