//! The job secret, and the keys that come of it by HKDF (RFC 5869) with SHA-256.

use super::wire::SALT;
use ring::aead::{AES_128_GCM, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac;
use std::fmt;

/// Shortest secret, bytes.
pub const SHORTEST: usize = 16;
/// Longest secret, bytes.
pub const LONGEST: usize = 4096;

/// Secret of a job: who has it may talk to the job's processes, as any of them.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Takes the bytes of a secret.
    ///
    /// # Errors
    /// Fails if there are fewer than 16 or more than 4096, and names both.
    pub fn new(bytes: &[u8]) -> Result<Secret, String> {
        match bytes.len() {
            SHORTEST..=LONGEST => Ok(Secret(bytes.to_vec())),
            n => Err(format!("a secret of {n} bytes; it has {SHORTEST} to {LONGEST}")),
        }
    }

    /// Key that authenticates handshakes.
    pub(super) fn handshake_key(&self) -> MacKey {
        let prk = Salt::new(HKDF_SHA256, b"usnic auth v1").extract(&self.0);
        MacKey(hmac::Key::new(hmac::HMAC_SHA256, &expand32(&prk, &[b"handshake"])))
    }

    /// Key that authenticates messages of the owner's. No handshake takes them; `purpose` tells them apart.
    pub fn mac_key(&self, purpose: &str) -> MacKey {
        let prk = Salt::new(HKDF_SHA256, b"usnic owner v1").extract(&self.0);
        MacKey(hmac::Key::new(hmac::HMAC_SHA256, &expand32(&prk, &[purpose.as_bytes()])))
    }

    /// Hexadecimal number that tells jobs apart, and from which nothing of the secret can be found out.
    pub fn tag(&self, purpose: &str) -> String {
        let prk = Salt::new(HKDF_SHA256, b"usnic owner v1").extract(&self.0);
        let tag: [u8; 16] = expand(&prk, &[b"tag", purpose.as_bytes()]);
        format!("{:032x}", u128::from_be_bytes(tag))
    }

    /// Secrets of the two directions of a session: of what the initiator sends, and of what it receives.
    pub(super) fn session(
        &self,
        initiator: (u64, &[u8; SALT]),
        responder: (u64, &[u8; SALT]),
    ) -> [[u8; 32]; 2] {
        let salts = [*initiator.1, *responder.1].concat();
        let prk = Salt::new(HKDF_SHA256, &salts).extract(&self.0);
        let (from, to) = (initiator.0.to_le_bytes(), responder.0.to_le_bytes());
        [b"usnic auth v1 >", b"usnic auth v1 <"].map(|label| expand32(&prk, &[label, &from, &to]))
    }
}

/// A number of bytes, as `ring` wants it.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand<const N: usize>(prk: &Prk, info: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    // Fails for more than 255 hashes only.
    let filled = prk.expand(info, Len(N)).and_then(|okm| okm.fill(&mut out));
    assert!(filled.is_ok(), "a key of {N} bytes");
    out
}

fn expand32(prk: &Prk, info: &[&[u8]]) -> [u8; 32] {
    expand(prk, info)
}

/// Authenticates messages by a code of 32 bytes.
pub struct MacKey(hmac::Key);

impl MacKey {
    /// Code of the parts, one after the other.
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        sign(&self.0, parts)
    }

    /// Whether a code is that of the bytes, in constant time.
    pub fn verify(&self, bytes: &[u8], code: &[u8; 32]) -> bool {
        hmac::verify(&self.0, bytes, code).is_ok()
    }
}

fn sign(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    let mut code = [0; 32];
    code.copy_from_slice(context.sign().as_ref());
    code
}

/// Random bytes of this process: salts, and keys of cookies. They come from a seed, so that a simulation can
/// repeat a run; a process draws the seed from its system once.
pub struct Random {
    key: hmac::Key,
    drawn: u64,
}

impl Random {
    /// Begins with a seed.
    pub fn new(seed: &[u8; 32]) -> Random {
        Random { key: hmac::Key::new(hmac::HMAC_SHA256, seed), drawn: 0 }
    }

    /// A new salt.
    pub fn salt(&mut self) -> [u8; SALT] {
        self.drawn += 1;
        sign(&self.key, &[b"salt", &self.drawn.to_le_bytes()])
    }

    /// Key of the cookies of one period.
    pub fn cookie_key(&self, period: u64) -> MacKey {
        let key = sign(&self.key, &[b"cookies", &period.to_le_bytes()]);
        MacKey(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }
}

/// Key of one direction of a session, for one epoch.
pub struct EpochKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

impl EpochKey {
    /// Key of an epoch's secret.
    pub fn new(secret: &[u8; 32]) -> EpochKey {
        let prk = Prk::new_less_safe(HKDF_SHA256, secret);
        let key: [u8; 16] = expand(&prk, &[b"key"]);
        let Ok(key) = UnboundKey::new(&AES_128_GCM, &key) else { unreachable!("it has the cipher's length") };
        EpochKey { key: LessSafeKey::new(key), iv: expand(&prk, &[b"iv"]) }
    }

    /// Secret of the epoch that follows.
    pub fn next(secret: &[u8; 32]) -> [u8; 32] {
        expand(&Prk::new_less_safe(HKDF_SHA256, secret), &[b"next"])
    }

    /// The cipher's key.
    #[inline]
    pub fn aead(&self) -> &LessSafeKey {
        &self.key
    }

    /// Nonce of a datagram: its number over the key's vector, as in TLS 1.3.
    #[inline]
    pub fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()).for_each(|(to, from)| *to ^= from);
        Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_tells_secrets_and_purposes_apart() {
        let tag = |secret: &[u8], purpose| Secret::new(secret).unwrap().tag(purpose);
        let of_one = tag(b"the secret of job one", "a");
        assert_eq!((of_one.len(), &of_one), (32, &tag(b"the secret of job one", "a")));
        assert_ne!(of_one, tag(b"the secret of job two", "a"));
        assert_ne!(of_one, tag(b"the secret of job one", "b"));
    }
}
