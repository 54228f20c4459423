//! Conversion of verbs' completion statuses and error numbers.

use crate::api::Error;
use crate::efa::dev::DevStatus;
use rdma_sys::ibv_wc_status as wc;
use ucs::Errno;

/// Device status of a completion: the vendor code, or without one the closest match of the verbs status.
#[inline]
pub(super) fn dev_status(status: wc::Type, vendor_err: impl FnOnce() -> u32) -> DevStatus {
    if status == wc::IBV_WC_SUCCESS { DevStatus::Ok } else { failed(status, vendor_err()) }
}

#[cold]
fn failed(status: wc::Type, vendor_err: u32) -> DevStatus {
    let code = u8::try_from(vendor_err).ok().and_then(|code| DevStatus::try_from(code).ok());
    if let Some(code) = code.filter(|code| *code != DevStatus::Ok) {
        return code;
    }
    match status {
        wc::IBV_WC_WR_FLUSH_ERR => DevStatus::Flushed,
        wc::IBV_WC_LOC_LEN_ERR => DevStatus::BadLength,
        wc::IBV_WC_LOC_PROT_ERR => DevStatus::InvalidLkey,
        wc::IBV_WC_REM_ACCESS_ERR => DevStatus::RemoteBadAddress,
        wc::IBV_WC_REM_ABORT_ERR => DevStatus::RemoteAbort,
        wc::IBV_WC_REM_INV_RD_REQ_ERR => DevStatus::BadDestQpn,
        wc::IBV_WC_RNR_RETRY_EXC_ERR => DevStatus::Rnr,
        wc::IBV_WC_REM_INV_REQ_ERR => DevStatus::RemoteBadLength,
        wc::IBV_WC_REM_OP_ERR => DevStatus::UnknownPeer,
        wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_RESP_TIMEOUT_ERR => DevStatus::Unresponsive,
        wc::IBV_WC_BAD_RESP_ERR => DevStatus::BadStatus,
        _ => DevStatus::QpInternal,
    }
}

/// Error of a verb that returned an error number.
pub(super) fn error(call: &'static str, errno: Errno) -> Error {
    match errno.0 {
        libc::ENOMEM => Error::NoMemory,
        libc::EMFILE | libc::ENFILE => Error::NoDescriptor,
        _ => Error::Sys { call, errno },
    }
}

/// Error of a verb that returned null.
pub(super) fn last_error(call: &'static str) -> Error {
    error(call, Errno::last_os())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vendor_code_takes_precedence() {
        assert_eq!(dev_status(wc::IBV_WC_SUCCESS, || panic!("not asked")), DevStatus::Ok);
        for code in 1..=18 {
            if let Ok(status) = DevStatus::try_from(code) {
                assert_eq!(dev_status(wc::IBV_WC_GENERAL_ERR, || code.into()), status);
            }
        }
        assert_eq!(dev_status(wc::IBV_WC_WR_FLUSH_ERR, || 0), DevStatus::Flushed);
        assert_eq!(
            dev_status(wc::IBV_WC_RNR_RETRY_EXC_ERR, || 0x100),
            DevStatus::Rnr,
            "not a code of the device"
        );
        assert_eq!(dev_status(wc::IBV_WC_FATAL_ERR, || 0), DevStatus::QpInternal, "never taken for success");
    }
}
