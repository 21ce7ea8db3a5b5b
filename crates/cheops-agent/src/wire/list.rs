//! Lists whose length is what came, not what was announced.

use core::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor},
};

use super::{Names, Problem, Twin, WireError, error::At};

/// The most items of a list: enough for a matrix that names each pair of 255 kinds.
pub const MAX_ITEMS: usize = 1 << 16;

/// A list of twins.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct List<T>(Vec<T>);

impl<T> List<T> {
    pub(super) fn new(items: Vec<T>) -> Result<Self, Problem> {
        let list = Self(items);
        list.within_limit()?;
        Ok(list)
    }

    /// The items; an error if there are too many.
    pub(super) fn items(self) -> Result<Vec<T>, Problem> {
        self.within_limit()?;
        Ok(self.0)
    }

    fn within_limit(&self) -> Result<(), Problem> {
        let count = self.0.len();
        if count > MAX_ITEMS { Err(Problem::TooManyItems(count)) } else { Ok(()) }
    }

    /// The twins of some values.
    pub(super) fn of<'a>(values: impl IntoIterator<Item = &'a T::Value>) -> Result<Self, WireError>
    where
        T: Twin<'a, Value: 'a>,
    {
        let twins = values.into_iter().enumerate().map(|(n, value)| T::of(value).at_item(n));
        Ok(Self::new(twins.collect::<Result<_, _>>()?)?)
    }

    /// The values that these are the twins of, in any collection.
    pub(super) fn read<'a, C>(self, names: &mut Names) -> Result<C, WireError>
    where
        T: Twin<'a>,
        C: FromIterator<T::Value>,
    {
        let twins = self.items()?.into_iter().enumerate();
        twins.map(|(n, twin)| twin.read(names).at_item(n)).collect()
    }

    /// The same for a set or a map, whose items ascend by their keys: none is named twice.
    pub(super) fn read_ascending<'a, K, C>(
        self,
        names: &mut Names,
        key: impl Fn(&T::Value) -> K,
    ) -> Result<C, WireError>
    where
        T: Twin<'a>,
        K: Ord,
        C: FromIterator<T::Value>,
    {
        let mut last = None;
        let twins = self.items()?.into_iter().enumerate();
        twins
            .map(|(n, twin)| {
                let value = twin.read(names).at_item(n)?;
                let this = Some(key(&value));
                if last >= this {
                    return Err(Problem::Disorder).at_item(n);
                }
                last = this;
                Ok(value)
            })
            .collect()
    }
}

/// By hand, since serde's own reader of lists sets room aside for as many items as are announced,
/// and anyone can announce a million.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(List(items))
            }
        }

        deserializer.deserialize_seq(Items(PhantomData))
    }
}
