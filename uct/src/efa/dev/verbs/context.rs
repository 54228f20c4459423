//! The device list of libibverbs, and an opened device with its attributes.

#![allow(unsafe_code)]

use super::efadv;
use super::status::error;
use crate::api::{Error, Linear, OpenError, RmaPerf};
use crate::efa::dev::nics::{LATENCY, OVERHEAD};
use crate::efa::dev::{DevAttr, DevPerf, Gid};
use rdma_sys::*;
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::ptr::NonNull;
use ucs::Errno;

/// The only port of an EFA device.
pub(super) const PORT: u8 = 1;

pub(super) struct DeviceList {
    first: *mut *mut ibv_device,
    len: usize,
}

pub(super) struct ListedDevice<'a> {
    list: &'a DeviceList,
    at: usize,
}

impl DeviceList {
    /// Lists every RDMA device, EFA or not; empty where the kernel has no RDMA.
    pub(super) fn new() -> DeviceList {
        let mut len: c_int = 0;
        // SAFETY: `len` is writable; the list is freed on drop.
        let first = unsafe { ibv_get_device_list(&mut len) };
        DeviceList { first, len: if first.is_null() { 0 } else { len.max(0) as usize } }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ListedDevice<'_>> {
        (0..self.len).map(|at| ListedDevice { list: self, at })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: came from ibv_get_device_list and is freed once; users of a device borrow `self`.
            unsafe { ibv_free_device_list(self.first) };
        }
    }
}

fn text(chars: &[c_char]) -> String {
    chars.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect()
}

impl ListedDevice<'_> {
    fn raw(&self) -> *mut ibv_device {
        let entry = self.list.first.wrapping_add(self.at);
        // SAFETY: `at` is below the length the list came with.
        unsafe { entry.read() }
    }

    fn fields(&self) -> &ibv_device {
        // SAFETY: a listed device lives as long as the list, which is borrowed; nobody writes to it.
        unsafe { &*self.raw() }
    }

    pub(super) fn name(&self) -> String {
        // SAFETY: a listed device.
        let name = unsafe { ibv_get_device_name(self.raw()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: a string that lives as long as the device.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Name of the character device, such as `uverbs0`.
    pub(super) fn node(&self) -> String {
        text(&self.fields().dev_name)
    }

    pub(super) fn sysfs(&self) -> PathBuf {
        text(&self.fields().ibdev_path).into()
    }

    pub(super) fn open(&self, name: String) -> Result<Context, OpenError> {
        let (path, node) = (self.sysfs(), self.node());
        // SAFETY: a listed device.
        let Some(ptr) = NonNull::new(unsafe { ibv_open_device(self.raw()) }) else {
            let errno = Errno::last_os();
            return Err(OpenError::Environment(format!("{name} ({node}) cannot be opened: {errno}")));
        };
        // Closed on drop from here on.
        let mut ctx = Context { ptr, attr: empty_attr(name), gid: Gid([0; 16]), software: false };
        ctx.software = !path.canonicalize().unwrap_or(path).starts_with("/sys");
        ctx.gid = ctx.query_gid()?;
        ctx.attr = ctx.query()?;
        Ok(ctx)
    }
}

pub(super) struct Context {
    ptr: NonNull<ibv_context>,
    pub(super) attr: DevAttr,
    pub(super) gid: Gid,
    /// Whether its sysfs directory is not the kernel's.
    pub(super) software: bool,
}

// SAFETY: the library's contexts are for any thread; the other fields do not change.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.ptr.as_ptr()
    }

    fn query_gid(&self) -> Result<Gid, Error> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: an open device; `gid` is writable.
        if unsafe { ibv_query_gid(self.as_ptr(), PORT, 0, &mut gid) } != 0 {
            return Err(error("ibv_query_gid", Errno::last_os()));
        }
        // SAFETY: any 16 bytes are a GID.
        Ok(Gid(unsafe { gid.raw }))
    }

    fn query_port(&self) -> Result<ibv_port_attr, Error> {
        // Room for fields that a newer library appends.
        #[repr(C)]
        struct Padded(ibv_port_attr, [u64; 16]);
        // SAFETY: integers only.
        let mut buf: Padded = unsafe { std::mem::zeroed() };
        // SAFETY: an open device; the place is longer than the structure of any version.
        let failed = unsafe { ibv_query_port(self.as_ptr(), PORT, (&raw mut buf).cast()) };
        if failed != 0 { Err(error("ibv_query_port", Errno(failed))) } else { Ok(buf.0) }
    }

    fn query(&self) -> Result<DevAttr, OpenError> {
        let name = &self.attr.name;
        let mut efa = efadv::DeviceAttr::default();
        // SAFETY: an open device; `efa` is as long as is said.
        let failed = unsafe { efadv::efadv_query_device(self.as_ptr(), &mut efa, size_of_val(&efa) as u32) };
        match failed {
            0 => {}
            libc::EOPNOTSUPP => {
                return Err(OpenError::Environment(format!("{name} is not an EFA device")));
            }
            e => return Err(error("efadv_query_device", Errno(e)).into()),
        }
        let has = |cap: u32| efa.device_caps & cap != 0;
        if !has(efadv::CAP_CQ_WITH_SGID) {
            let text = "does not tell who sends (firmware or driver too old: no source GID in completions)";
            return Err(OpenError::Environment(format!("{name} {text}")));
        }
        // SAFETY: integers only.
        let mut dev: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open device; `dev` is writable.
        let failed = unsafe { ibv_query_device(self.as_ptr(), &mut dev) };
        if failed != 0 {
            return Err(error("ibv_query_device", Errno(failed)).into());
        }
        let port = self.query_port()?;
        let (rdma_read, rdma_write) = (has(efadv::CAP_RDMA_READ), has(efadv::CAP_RDMA_WRITE));
        // Longer inline data double a WQE, so half as many fit the queue.
        let wide_wqe = efa.inline_buf_size_ex > efa.inline_buf_size;
        let link_bps = link_bps(port.active_width, port.active_speed);
        Ok(DevAttr {
            name: name.clone(),
            part_id: dev.vendor_part_id,
            fw: text(&dev.fw_ver),
            mtu: port.max_msg_sz,
            max_inline: efa.inline_buf_size.max(efa.inline_buf_size_ex).into(),
            max_rdma: if rdma_read || rdma_write { efa.max_rdma_size } else { 0 },
            rdma_read,
            rdma_write,
            unsolicited_write_recv: has(efadv::CAP_UNSOLICITED_WRITE_RECV),
            rnr_retry: has(efadv::CAP_RNR_RETRY),
            max_qp: count(dev.max_qp),
            max_send_depth: if wide_wqe { efa.max_sq_wr / 2 } else { efa.max_sq_wr },
            max_recv_depth: efa.max_rq_wr,
            max_cqe: count(dev.max_cqe),
            max_mr: count(dev.max_mr),
            max_ah: count(dev.max_ah),
            max_send_sge: efa.max_sq_sge.into(),
            link_bps,
            perf: perf(link_bps),
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; everything made on it holds a share of `self` and is gone.
        unsafe { ibv_close_device(self.as_ptr()) };
    }
}

fn count(n: c_int) -> u32 {
    n.max(0) as u32
}

fn empty_attr(name: String) -> DevAttr {
    DevAttr {
        name,
        part_id: 0,
        fw: String::new(),
        mtu: 0,
        max_inline: 0,
        max_rdma: 0,
        rdma_read: false,
        rdma_write: false,
        unsolicited_write_recv: false,
        rnr_retry: false,
        max_qp: 0,
        max_send_depth: 0,
        max_recv_depth: 0,
        max_cqe: 0,
        max_mr: 0,
        max_ah: 0,
        max_send_sge: 0,
        link_bps: 0,
        perf: perf(DEFAULT_BPS),
    }
}

/// Cost estimates, which the device does not report: the order of published figures.
fn perf(link_bps: u64) -> DevPerf {
    let bandwidth = link_bps.max(1) as f64 / 8.0;
    let round_trip = Linear::new(2.0 * LATENCY + OVERHEAD, bandwidth);
    DevPerf {
        latency: LATENCY,
        overhead: OVERHEAD,
        bandwidth,
        // Pages are pinned, and each is reported to the device.
        register: Linear { fixed: 20_000.0, per_byte: 0.03 },
        rma: RmaPerf::all(round_trip, round_trip),
    }
}

/// Assumed link speed if unknown, bits per second.
const DEFAULT_BPS: u64 = 100_000_000_000;

/// Link speed, bits per second, from InfiniBand's codes of width and speed.
fn link_bps(width: u8, speed: u8) -> u64 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let mbps = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    match lanes * mbps {
        0 => DEFAULT_BPS,
        known => known * 1_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speeds() {
        assert_eq!(link_bps(2, 32), 100_000_000_000);
        assert_eq!(link_bps(8, 64), 600_000_000_000);
        assert_eq!(link_bps(3, 32), DEFAULT_BPS);
    }
}
