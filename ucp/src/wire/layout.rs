//! Field lists of fixed headers, checked against the structs at compile time. `table` collects them.

/// How a field is best shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldFormat {
    /// A number.
    Dec,
    /// An opaque value.
    Hex,
    /// Meaningless; shown only if not zero.
    Pad,
    /// A number of an [`super::rta::AtomicOp`].
    Op,
    /// A number of a [`super::rta::Datatype`].
    Datatype,
}

/// One field of a fixed header, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name on the wire.
    pub name: &'static str,
    /// Offset from the start of the packet, bytes.
    pub offset: u16,
    /// Width, bytes: 1, 2, 4 or 8.
    pub width: u8,
    /// How to show it.
    pub format: FieldFormat,
    /// Meaning of the value.
    pub meaning: &'static str,
}

impl Field {
    /// The value in this packet, if the packet is long enough.
    pub fn get(&self, packet: &[u8]) -> Option<u64> {
        let at = usize::from(self.offset);
        let bytes = packet.get(at..at + usize::from(self.width))?;
        let mut value = [0; 8];
        value.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    }
}

/// Width of the field a getter answers.
pub(super) const fn width_of<H, F>(_: fn(&H) -> &F) -> usize {
    size_of::<F>()
}

/// Declares the field list of a header and checks it against the struct: offsets, widths, no gap, the size.
/// Written as `name: width @ offset, Format, "meaning";`, behind the base header. `name as "other"` renames a
/// field.
macro_rules! layout {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $label:literal) => { $label };
    ($(#[$doc:meta])* $vis:vis const $list:ident: $hdr:ty = $size:literal {
        $($field:ident $(as $label:literal)?: $width:literal @ $at:literal, $show:ident, $meaning:literal;)*
    }) => {
        $(#[$doc])*
        $vis const $list: &[$crate::wire::layout::Field] = &[$($crate::wire::layout::Field {
            name: $crate::wire::layout::layout!(@name $field $($label)?),
            offset: $at,
            width: $width,
            format: $crate::wire::layout::FieldFormat::$show,
            meaning: $meaning,
        }),*];

        const _: () = {
            assert!(size_of::<$hdr>() == $size && align_of::<$hdr>() == 1);
            assert!(std::mem::offset_of!($hdr, base) == 0);
            $(
                assert!(std::mem::offset_of!($hdr, $field) == $at);
                assert!($crate::wire::layout::width_of::<$hdr, _>(|hdr| &hdr.$field) == $width);
            )*
            assert!(4 $(+ $width)* == $size);
        };
    };
}
pub(super) use layout;
