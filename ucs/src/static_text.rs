//! A text that is kept for ever, as a small number, so that errors which carry one stay small and `Copy`.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A text in two bytes, which lives as long as the process. Making one takes a lock: for errors, not for the
/// hot path.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InternedStr(u16);

/// Every text that was made, by number. A program has few, and each is kept once.
static TEXTS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

const FULL: &str = "a reason that has no number left";

impl InternedStr {
    /// The number of a text: equal texts have equal numbers.
    #[cold]
    pub fn new(text: &'static str) -> InternedStr {
        InternedStr::intern(text, || text)
    }

    /// The number of a text made at run time, which is kept. For texts of which there are few, such as
    /// the name of a system call with an error number.
    #[cold]
    pub fn kept(text: &str) -> InternedStr {
        InternedStr::intern(text, || Box::leak(text.into()))
    }

    fn intern(text: &str, keep: impl FnOnce() -> &'static str) -> InternedStr {
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let at = texts.iter().position(|known| *known == text).unwrap_or_else(|| {
            // More texts than numbers are not expected; the last number stands for the rest.
            if texts.len() < usize::from(u16::MAX) {
                texts.push(keep());
                return texts.len() - 1;
            }
            usize::from(u16::MAX)
        });
        InternedStr(u16::try_from(at).unwrap_or(u16::MAX))
    }

    /// The text.
    pub fn text(self) -> &'static str {
        let texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        texts.get(usize::from(self.0)).copied().unwrap_or(FULL)
    }
}

impl fmt::Display for InternedStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for InternedStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.text(), f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_and_is_kept_once() {
        let one = InternedStr::new("one text of a test");
        let two = InternedStr::new("another text of a test");
        assert_eq!((one.text(), two.text()), ("one text of a test", "another text of a test"));
        assert_eq!(InternedStr::new("one text of a test"), one);
        assert_ne!(one, two);
        assert_eq!(InternedStr::kept(&["one text", "of a test"].join(" ")), one);
        assert_eq!(InternedStr::kept(&format!("number {}", 7)).text(), "number 7");
        assert_eq!(size_of::<InternedStr>(), 2);
    }
}
