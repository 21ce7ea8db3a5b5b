//! Twins: a value of the core on one side, something that can be written on the other.

use super::{Names, WireError, error::At};

/// The serialised twin of a type of the core. It borrows its texts, from the value or from the
/// bytes, so that nothing is copied on the way out and nothing twice on the way in.
pub trait Twin<'a>: Sized {
    /// The type of the core.
    type Value;

    /// The twin of a value. An error if what it says could not be read again.
    fn of(value: &'a Self::Value) -> Result<Self, WireError>;

    /// The value that this is the twin of, made through the core's own doors.
    fn read(self, names: &mut Names) -> Result<Self::Value, WireError>;
}

impl Twin<'_> for u64 {
    type Value = Self;

    fn of(value: &Self) -> Result<Self, WireError> {
        Ok(*value)
    }

    fn read(self, _: &mut Names) -> Result<Self, WireError> {
        Ok(self)
    }
}

/// A text that is no name: it is copied, not shared.
impl<'a> Twin<'a> for &'a str {
    type Value = Box<str>;

    fn of(value: &'a Box<str>) -> Result<Self, WireError> {
        Ok(value)
    }

    fn read(self, _: &mut Names) -> Result<Box<str>, WireError> {
        Ok(self.into())
    }
}

impl<'a, T: Twin<'a>> Twin<'a> for Option<T> {
    type Value = Option<T::Value>;

    fn of(value: &'a Option<T::Value>) -> Result<Self, WireError> {
        value.as_ref().map(T::of).transpose()
    }

    fn read(self, names: &mut Names) -> Result<Option<T::Value>, WireError> {
        self.map(|twin| twin.read(names)).transpose()
    }
}

impl<'a, A: Twin<'a>, B: Twin<'a>> Twin<'a> for (A, B) {
    type Value = (A::Value, B::Value);

    fn of((a, b): &'a (A::Value, B::Value)) -> Result<Self, WireError> {
        Ok((A::of(a).at_item(0)?, B::of(b).at_item(1)?))
    }

    fn read(self, names: &mut Names) -> Result<(A::Value, B::Value), WireError> {
        Ok((self.0.read(names).at_item(0)?, self.1.read(names).at_item(1)?))
    }
}
