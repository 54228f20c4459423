//! Address vectors. An address gets a number, which is its index, as `FI_AV_TABLE` says; `FI_AV_MAP` promises
//! less. Endpoints connect to an address when they first use it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use ucp::wire::RawAddr;
use ucp::{Address, AddressTable, PeerId, SharedTableError, TableAccess};

use crate::abi::ops::{AvOps, FidOps};
use crate::abi::queue::AvAttr;
use crate::abi::{ADDR_UNSPEC, AvSetAttr, FiAddr, Fid, flags};
use crate::domain::Domain;
use crate::ep::Ep;
use crate::eq::Eq;
use crate::errno::Errno;
use crate::info::NameForm;
use crate::object::{Object, UserCount, checked, from_handle, read, store, store_handle};
use crate::refused;

/// `FI_SYNC_ERR`.
pub(crate) const SYNC_ERR: u64 = 1 << 58;
/// Most bits of an address for receive contexts.
const MAX_RX_CTX_BITS: u32 = 8;
/// `FI_READ`: the vector has a name, is there, and is not to be changed.
const READ_ONLY: u64 = flags::READ;
/// Least and greatest length of the list of numbers at the `map_addr` of a vector with a name.
const MAP_LEN: (usize, usize) = (4096, 1 << 20);

/// `struct fid_av`, and what belongs to it.
#[repr(C)]
pub(crate) struct Av {
    fid: Fid,
    ops: &'static AvOps,
    domain: *const Domain,
    users: UserCount,
    form: NameForm,
    /// Bits of an address that name a receive context, at its top.
    pub(crate) rx_ctx_bits: u32,
    /// Insertions are reported to the event queue.
    is_async: bool,
    eq: AtomicPtr<Fid>,
    addresses: RwLock<AddressTable>,
    /// Of a vector with a name, what its `map_addr` points to: the numbers, from 0.
    map: Box<[FiAddr]>,
    /// Endpoints that use the vector.
    eps: Mutex<Vec<*const Ep>>,
}

impl Object for Av {
    const CLASS: usize = flags::CLASS_AV;
    const NAME: &'static str = "an address vector";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, bind, refused::control);

static OPS: AvOps =
    AvOps { size: size_of::<AvOps>(), insert, insertsvc, insertsym, remove, lookup, straddr, av_set };

/// Opens an address vector.
/// # Safety
/// `attr` is null or whole, and can be written; `to` is null or can be written.
pub(crate) unsafe fn open(
    domain: &Domain,
    attr: *mut AvAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let mut given = unsafe { read(attr) }?;
    // SAFETY: as above.
    let name = unsafe { crate::provider::text(given.name) };
    let rx_ctx_bits = u32::try_from(given.rx_ctx_bits).ok().filter(|bits| *bits <= MAX_RX_CTX_BITS);
    if rx_ctx_bits.is_none()
        || given.flags & !(flags::EVENT | READ_ONLY) != 0
        || given.av_type > flags::AV_TABLE
    {
        tracing::error!(
            "fi_av_open: type {}, {} bits of receive contexts, flags {:#x} are not supported",
            given.av_type,
            given.rx_ctx_bits,
            given.flags
        );
        return Err(Errno::INVAL);
    }
    if given.av_type == flags::AV_UNSPEC {
        given.av_type = if domain.av_type == flags::AV_MAP { flags::AV_MAP } else { flags::AV_TABLE };
        // SAFETY: as above.
        unsafe { store(attr, given) }?;
    }
    let addresses = open_table(domain, name.as_deref(), given.flags & READ_ONLY != 0)?;
    let mut map = Box::default();
    if addresses.is_shared() {
        map = (0..given.count.clamp(MAP_LEN.0, MAP_LEN.1) as FiAddr).collect::<Box<[FiAddr]>>();
        if given.map_addr.is_null() {
            given.map_addr = map.as_ptr().cast_mut().cast();
            // SAFETY: as above.
            unsafe { store(attr, given) }?;
        }
    }
    let made = Av {
        fid: refused::fid(flags::CLASS_AV, context, &FID_OPS),
        ops: &OPS,
        domain,
        users: UserCount::default(),
        form: domain.name_form,
        rx_ctx_bits: rx_ctx_bits.unwrap_or(0),
        is_async: given.flags & flags::EVENT != 0,
        eq: AtomicPtr::default(),
        addresses: RwLock::new(addresses),
        map,
        eps: Mutex::default(),
    };
    // SAFETY: as above.
    unsafe { store_handle(to, made) }?;
    domain.users().add();
    Ok(())
}

/// The table of a vector: shared by processes if it has a name.
fn open_table(domain: &Domain, name: Option<&str>, is_read_only: bool) -> Result<AddressTable, Errno> {
    let access = if is_read_only { TableAccess::Read } else { TableAccess::Write };
    let Some(name) = name else {
        return if is_read_only { Err(Errno::INVAL) } else { Ok(AddressTable::new()) };
    };
    // Names of endpoints of another length are none in this domain.
    let of_domain = format!("{}:{}:{name}", domain.name, domain.name_form.len());
    AddressTable::open_shared(&of_domain, access).map_err(|error| {
        tracing::error!("fi_av_open: the vector named {name}: {error}");
        match error {
            SharedTableError::NotThere => Errno::NOENT,
            SharedTableError::Name => Errno::INVAL,
            SharedTableError::Busy(_) => Errno(libc::EBUSY),
            SharedTableError::System(_, error) => Errno(error.raw_os_error().unwrap_or(Errno::IO.0)),
            _ => Errno::ACCES,
        }
    })
}

impl Av {
    /// Reads what other processes have changed.
    fn refresh(&self) {
        if self.map.is_empty() {
            return;
        }
        let refreshed = self.addresses.write().unwrap_or_else(PoisonError::into_inner).refresh();
        if let Err(error) = refreshed {
            tracing::error!("{error}");
        }
    }

    /// Refuses a change of a vector that was opened with `FI_READ`.
    fn check_writable(&self) -> Result<(), Errno> {
        match self.addresses.read().unwrap_or_else(PoisonError::into_inner).is_read_only() {
            true => Err(Errno::ACCES),
            false => Ok(()),
        }
    }

    /// The address with this number: of a scalable endpoint, that of the receive context in the high bits.
    pub(crate) fn address(&self, address: FiAddr) -> Option<Address> {
        self.refresh();
        let nth = address.checked_shr(64 - self.rx_ctx_bits).unwrap_or(0) as usize;
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        addresses.address_of(self.number(address), nth)
    }

    /// Numbers of the addresses that are there.
    pub(crate) fn numbers(&self) -> Vec<FiAddr> {
        self.refresh();
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        (0..addresses.end()).filter(|number| addresses.packed(*number).is_some()).collect()
    }

    /// An address without the number of a receive context.
    pub(crate) fn number(&self, address: FiAddr) -> FiAddr {
        address & (FiAddr::MAX >> self.rx_ctx_bits)
    }

    /// Number of the sender of a message.
    pub(crate) fn sender(&self, worker: &ucp::Worker, from: PeerId) -> Option<FiAddr> {
        worker.sender_in(&mut self.addresses.write().unwrap_or_else(PoisonError::into_inner), from)
    }

    pub(crate) fn add_ep(&self, ep: &Ep) {
        self.eps.lock().unwrap_or_else(PoisonError::into_inner).push(ep);
        self.users.add();
    }

    pub(crate) fn remove_ep(&self, ep: &Ep) {
        self.eps.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| !std::ptr::eq(*known, ep));
        self.users.remove();
    }

    /// The packed address in a name; `None`: it is none.
    fn packed<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let len = match self.form {
            NameForm::Scalable => {
                let mut len = 0;
                while name.get(len).is_some_and(|byte| *byte != 0) {
                    len += Address::packed_len(&name[len..]).ok()?;
                }
                Some(len).filter(|len| (1..=name.len()).contains(len))?
            }
            NameForm::Efa => name.len(),
            NameForm::Packed | NameForm::Wide => {
                Address::packed_len(name).ok().filter(|len| *len <= name.len())?
            }
        };
        Some(&name[..len])
    }

    /// A name in words, which [`NameForm::name_in`] reads.
    fn words(&self, name: &[u8]) -> Option<String> {
        let packed = self.packed(name)?;
        let address = Address::unpack(packed).ok()?;
        Some(match self.form {
            NameForm::Efa => format!("fi_addr_efa://{}", RawAddr::from_bytes(name.try_into().ok()?)),
            NameForm::Packed | NameForm::Wide | NameForm::Scalable => {
                let bytes: String = packed.iter().map(|byte| format!("{byte:02x}")).collect();
                let transports: Vec<&str> = address.transports().collect();
                format!("fi_addr_efa4://{bytes}/{}", transports.join(","))
            }
        })
    }

    /// The event queue to which insertions are reported, if this vector reports them.
    fn reports_to(&self) -> Result<Option<&Eq>, Errno> {
        match self.is_async {
            true => {
                // SAFETY: a queue is not closed before the vectors that are bound to it.
                unsafe { checked::<Eq>(self.eq.load(Ordering::Acquire)) }.map(Some).map_err(|_| Errno::NOEQ)
            }
            false => Ok(None),
        }
    }

    /// Inserts the address in a text. Returns the result of the call.
    /// # Safety
    /// Both texts are null or C strings; `number` is null or can be written.
    unsafe fn insert_words(
        &self,
        (node, service): (*const c_char, *const c_char),
        number: *mut FiAddr,
        context: *mut c_void,
    ) -> Result<c_int, Errno> {
        let eq = self.reports_to()?;
        // SAFETY: this function's contract.
        let [node, service] = unsafe { [crate::provider::text(node), crate::provider::text(service)] };
        let name = match (node, service) {
            (Some(words), None) => {
                self.form.name_in(&words).ok_or_else(|| format!("{words} is not the text of an address"))
            }
            (node, service) => crate::info::ask_for_name(node.as_deref(), service.as_deref())
                .and_then(|told| told.in_form(self.form)),
        };
        let name = name.map_err(|why| {
            tracing::error!("fi_av_insertsvc: {why}");
            Errno::INVAL
        })?;
        // SAFETY: as above.
        let failed = unsafe { self.insert(name.as_ptr().cast(), 1, number) }?;
        Ok(self.report(eq, context, 1, &failed))
    }

    /// Reports an insertion of so many names if there is a queue. Those at some positions are no addresses.
    /// Returns the result of the call.
    fn report(&self, eq: Option<&Eq>, context: *mut c_void, count: usize, failed: &[usize]) -> c_int {
        let inserted = count - failed.len();
        let Some(eq) = eq else { return c_int::try_from(inserted).unwrap_or(c_int::MAX) };
        for at in failed {
            eq.report_bad_address(&self.fid, context, *at as u64);
        }
        eq.report_insertion(&self.fid, context, inserted as u64);
        0
    }

    /// Inserts addresses. Returns the positions of names that are none.
    /// # Safety
    /// `names` is null or has `count` names of the length of the domain's; `numbers` is null or memory for as
    /// many.
    unsafe fn insert(
        &self,
        names: *const c_void,
        count: usize,
        numbers: *mut FiAddr,
    ) -> Result<Vec<usize>, Errno> {
        if names.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        self.check_writable()?;
        let mut failed = Vec::new();
        let mut addresses = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
        addresses.reserve(count);
        for at in 0..count {
            // SAFETY: the caller passes as many names of this length.
            let name = unsafe {
                std::slice::from_raw_parts(names.cast::<u8>().add(at * self.form.len()), self.form.len())
            };
            let insert = |packed| match addresses.insert(packed) {
                Ok(number) => Some(number),
                Err(error) => {
                    tracing::error!("fi_av_insert: {error}");
                    None
                }
            };
            let number = self.packed(name).and_then(insert);
            if number.is_none() {
                // In a table, a bad address takes a number, too, so that those behind it keep theirs.
                addresses.skip();
                failed.push(at);
            }
            if !numbers.is_null() {
                // SAFETY: the caller passes memory for as many.
                unsafe { numbers.add(at).write(number.unwrap_or(ADDR_UNSPEC)) };
            }
        }
        Ok(failed)
    }
}

calls! {
    /// Makes a set of addresses of the vector.
    fn av_set(fid: *mut Fid, attr: *const AvSetAttr, set: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::av_set::open(checked(fid)?, attr, set, context).map(|()| 0)
    }

    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Av>(fid)?;
        let eq = gone.eq.load(Ordering::Acquire);
        if let Ok(eq) = checked::<Eq>(eq) {
            eq.users().remove();
        }
        // SAFETY: a domain is not closed before its address vectors.
        unsafe { &*gone.domain }.users().remove();
        Ok(0)
    }

    /// Binds the event queue to which insertions are reported.
    fn bind(fid: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
        let av: &Av = checked(fid)?;
        let eq: &Eq = checked(to)?;
        if flags != 0 || !av.is_async || !av.eq.load(Ordering::Acquire).is_null() {
            return Err(Errno::INVAL);
        }
        eq.users().add();
        av.eq.store(to, Ordering::Release);
        Ok(0)
    }

    /// Inserts addresses; returns how many.
    fn insert(
        fid: *mut Fid, names: *const c_void, count: usize, numbers: *mut FiAddr, flags: u64, context: *mut c_void,
    ) -> c_int {
        let av: &Av = checked(fid)?;
        if flags & !(flags::MORE | SYNC_ERR) != 0 || (flags & SYNC_ERR != 0 && (av.is_async || context.is_null())) {
            return Err(Errno::BADFLAGS);
        }
        let eq = av.reports_to()?;
        let failed = av.insert(names, count, numbers)?;
        if flags & SYNC_ERR != 0 {
            let errors = context.cast::<c_int>();
            // SAFETY: the caller passes memory for as many errors.
            (0..count).for_each(|at| unsafe { errors.add(at).write(0) });
            // SAFETY: as above.
            failed.iter().for_each(|at| unsafe { errors.add(*at).write(Errno::INVAL.0) });
        }
        Ok(av.report(eq, context, count, &failed))
    }

    /// Inserts an address whose text (`FI_ADDR_STR`) is the node: one that `fi_av_straddr` has written.
    fn insertsvc(
        fid: *mut Fid, node: *const c_char, service: *const c_char, number: *mut FiAddr, flags: u64,
        context: *mut c_void,
    ) -> c_int {
        let av: &Av = checked(fid)?;
        if flags & !flags::MORE != 0 {
            return Err(Errno::BADFLAGS);
        }
        av.insert_words((node, service), number, context)
    }

    /// Inserts the address in a text, as above. Texts of several addresses do not follow from the first one.
    fn insertsym(
        fid: *mut Fid, node: *const c_char, nodes: usize, service: *const c_char, services: usize,
        numbers: *mut FiAddr, flags: u64, context: *mut c_void,
    ) -> c_int {
        let av: &Av = checked(fid)?;
        if flags & !flags::MORE != 0 {
            return Err(Errno::BADFLAGS);
        }
        if nodes != 1 || services > 1 {
            return Err(refused::log_refusal("fi_av_insertsym: addresses are not made from the text of another"));
        }
        av.insert_words((node, service), numbers, context)
    }

    /// Removes addresses. Their numbers are not used again.
    fn remove(fid: *mut Fid, numbers: *mut FiAddr, count: usize, _flags: u64) -> c_int {
        let av: &Av = checked(fid)?;
        if numbers.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        av.check_writable()?;
        for at in 0..count {
            // SAFETY: the caller passes as many.
            let number = unsafe { numbers.add(at).read() };
            if !av.addresses.write().unwrap_or_else(PoisonError::into_inner).remove(number) {
                tracing::error!("fi_av_remove: there is no address {number}");
                return Err(Errno::INVAL);
            }
            for ep in av.eps.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                // SAFETY: an endpoint leaves the list before it is freed.
                unsafe { &**ep }.forget_peer(number);
            }
        }
        Ok(0)
    }

    /// The name of a number.
    fn lookup(fid: *mut Fid, number: FiAddr, name: *mut c_void, len: *mut usize) -> c_int {
        let av: &Av = checked(fid)?;
        let number = av.number(number);
        let room = read(len)?;
        av.refresh();
        let addresses = av.addresses.read().unwrap_or_else(PoisonError::into_inner);
        let mut padded = addresses.packed(number).ok_or(Errno::INVAL)?.to_vec();
        padded.resize(av.form.len(), 0);
        store(len, padded.len())?;
        if room > 0 && name.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller passes memory of `room` bytes.
        unsafe { std::ptr::copy_nonoverlapping(padded.as_ptr(), name.cast(), padded.len().min(room)) };
        Ok(0)
    }

    /// A name in words.
    fn straddr(fid: *mut Fid, name: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char {
        let av: &Av = checked(fid)?;
        let room = read(len)?;
        if name.is_null() || buf.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller passes a name.
        let name = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), av.form.len()) };
        let text = av.words(name).unwrap_or_else(|| "not an address".into());
        let text = CString::new(text).unwrap_or_default();
        store(len, text.as_bytes_with_nul().len())?;
        // SAFETY: the caller passes memory of `room` bytes.
        unsafe { libc::snprintf(buf, room, c"%s".as_ptr(), text.as_ptr()) };
        Ok(buf.cast_const())
    }
}
