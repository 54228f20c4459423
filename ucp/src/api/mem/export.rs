//! Exported memory: its packed form, which another process of this host imports, and the mapping that comes
//! of it.

use uct::api::{DevKind, Md as _};

use crate::api::context::open::Context;
use crate::api::mem::memory::{Mem, MemError};
use crate::api::rma::packed_rkey::{packed_rkey_len, parse};

use crate::lane::Domain;

/// Bytes before the packed key: magic and version.
const HEADER: [u8; 4] = *b"MX\x01\x00";
/// Bytes of exported memory that tell its length.
const PREFIX: usize = HEADER.len() + 5;

/// Length of the exported memory with which `bytes` begins, from its first nine bytes.
pub fn exported_mem_len(bytes: &[u8]) -> Result<usize, MemError> {
    let packed = bytes.get(..PREFIX).and_then(|first| first.strip_prefix(&HEADER));
    let len = packed.and_then(|packed| packed_rkey_len(packed).ok()).ok_or(MemError::NotExported)?;
    Ok(HEADER.len() + len)
}

/// Whether processes of this host map memory of a domain.
fn is_mappable(domain: &Domain) -> bool {
    domain.kind == DevKind::Shm && domain.md.attr().rkey_needs_alloc
}

impl Mem {
    /// Packs memory for [`crate::Context::mem_import`] in another process of the same user on this host, or
    /// in another context of this one. Only memory of [`crate::Context::mem_alloc`] that a transport of
    /// shared memory (`posix`) holds can be exported, and what is registered of it; for all other memory
    /// the error is [`MemError::NotExportable`]. When `self` is dropped, importers keep their mapping, whose
    /// bytes are lost.
    pub fn export(&self) -> Result<Vec<u8>, MemError> {
        let is_mapped = self.key_domains().any(is_mappable);
        if !is_mapped {
            return Err(MemError::NotExportable);
        }
        let mut out = HEADER.to_vec();
        out.extend_from_slice(&self.pack_rkey());
        Ok(out)
    }
}

impl Context {
    /// Maps memory that [`Mem::export`] has packed, of another process of this user on this host, and
    /// registers it as [`Context::mem_map`]: programs of both see the same bytes, and operations of this
    /// process use it as memory of its own. Its address here is [`Mem::as_ptr`]; its access is what the owner
    /// permits to peers. Bytes behind the packed memory are ignored. When the owner frees the memory, the
    /// mapping stays and its bytes are lost.
    ///
    /// The errors are [`MemError::NotExported`] for other bytes, [`MemError::NotMapped`] without a transport
    /// in common, and [`MemError::Wire`] if the owner has freed the memory or is gone.
    pub fn mem_import(&self, exported: &[u8]) -> Result<Mem, MemError> {
        let domains = self.domains()?;
        let len = exported_mem_len(exported)?;
        let packed = exported.get(HEADER.len()..len).ok_or(MemError::NotExported)?;
        let parsed = parse(packed).map_err(|_| MemError::NotExported)?;
        let len = usize::try_from(parsed.len).map_err(|_| MemError::NotExported)?;
        let mut why = MemError::NotMapped;
        for (id, domain) in domains.iter().filter(|(_, domain)| is_mappable(domain)) {
            for (_, key, _) in parsed.domains.iter().filter(|(label, ..)| *label == domain.label) {
                match domain.md.unpack_rkey(key) {
                    Ok(key) => {
                        let range = (parsed.addr, len);
                        if let Some(mem) = Mem::of_key(domains.clone(), id, key, range, parsed.access)? {
                            return Ok(mem);
                        }
                    }
                    Err(error) => why = error.into(),
                }
            }
        }
        Err(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, AllocParams};
    use ucs::config::Source;

    fn context(tls: &str) -> Context {
        Context::configured(Source::empty().with("UCX_TLS", tls)).unwrap()
    }

    #[test]
    fn another_context_maps_exported_memory() {
        let (owner, other) = (context("posix"), context("posix,self"));
        let mem = owner.mem_alloc(10_000, Access::READ | Access::WRITE).unwrap();
        mem.write(100, b"of the owner");
        let exported = mem.export().unwrap();
        assert_eq!(exported_mem_len(&exported[..PREFIX]).unwrap(), exported.len());
        let behind = [&exported[..], b"garbage"].concat();
        let imported = other.mem_import(&behind).unwrap();
        assert_eq!((imported.len(), imported.access()), (10_000, Access::READ | Access::WRITE));
        let mut seen = [0; 12];
        imported.read(100, &mut seen);
        assert_eq!(&seen, b"of the owner");
        imported.write(4096, b"of the other");
        mem.read(4096, &mut seen);
        assert_eq!(&seen, b"of the other");
        // The mapping stays, without the bytes.
        drop(mem);
        imported.write(4096, b"of nobody else");
        imported.read(4096, &mut seen);
        assert_eq!(&seen, b"of nobody el");
        drop(other);
        assert_eq!(imported.export(), Err(MemError::NotExportable));
    }

    #[test]
    fn other_memory_is_not_exported() {
        let alone = context("self");
        let mem = alone.mem_alloc_with(100, AllocParams::new(Access::all())).unwrap();
        assert_eq!(mem.export(), Err(MemError::NotExportable));
        let owner = context("posix");
        let mut own = vec![0_u8; 100];
        // SAFETY: the memory outlives its registration, and nobody refers to it meanwhile.
        let mem = unsafe { owner.mem_map(own.as_mut_ptr(), 100, Access::all()) }.unwrap();
        assert_eq!(mem.export(), Err(MemError::NotExportable));
        let exported = owner.mem_alloc(100, Access::all()).unwrap().export().unwrap();
        assert_eq!(alone.mem_import(&exported).err(), Some(MemError::NotMapped));
        // The owner has freed it.
        assert!(matches!(context("posix").mem_import(&exported), Err(MemError::Wire(_))));
    }

    /// A process that exports memory may claim rights that the mapping does not have.
    #[test]
    fn claimed_rights_are_those_of_the_mapping() {
        let (owner, other) = (context("posix"), context("posix"));
        let mem = owner.mem_alloc(4096, Access::READ).unwrap();
        let mut exported = mem.export().unwrap();
        let access_at = HEADER.len() + 5;
        assert_eq!(exported[access_at], Access::READ.bits());
        exported[access_at] = Access::all().bits();
        assert_eq!(other.mem_import(&exported).unwrap().access(), Access::READ);
    }

    #[test]
    fn damaged_exports_are_refused() {
        let owner = context("posix");
        let mem = owner.mem_alloc(100, Access::all()).unwrap();
        let exported = mem.export().unwrap();
        for len in 0..exported.len() {
            assert_eq!(owner.mem_import(&exported[..len]).err(), Some(MemError::NotExported), "{len}");
        }
        for at in 0..exported.len() {
            let mut damaged = exported.clone();
            damaged[at] ^= 0x55;
            // What is mapped in spite of it lies inside the owner's memory.
            if let Ok(imported) = owner.mem_import(&damaged) {
                assert!(imported.len() <= 100, "byte {at}");
            }
        }
    }
}
