//! What is wrong with an encoding, or with a value that can't be encoded, and where.

use cheops_core::{
    id::{NameError, NoSite},
    matrix::{PartsError, TooManyKinds},
    trust::Seal,
};

use super::{LAST_ATTEMPT, LAST_NUMBER, MAX_DEPTH, MAX_ITEMS, MAX_LENGTH, VERSION};

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {place}: {problem}")]
pub struct WireError {
    /// The place: a path such as `records[3].parents[0].site`, or `byte 17` where the bytes stand
    /// for nothing at all.
    pub place: String,
    /// What is wrong there.
    pub problem: Problem,
}

/// What can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There are no bytes.
    #[error("there is nothing, not even a version")]
    Empty,
    /// The bytes are in another format.
    #[error("format {0} is unknown; this program reads format {VERSION}")]
    Version(u8),
    /// More bytes than are ever read.
    #[error("{0} bytes are too many; the limit is {MAX_LENGTH}")]
    TooLong(usize),
    /// The bytes stand for nothing.
    #[error("{0}")]
    Malformed(&'static str),
    /// Bytes follow the end.
    #[error("the end, but {0} more bytes follow")]
    Trailing(usize),
    /// A text is not the name that it should be.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A set of sites is empty.
    #[error(transparent)]
    NoSite(#[from] NoSite),
    /// A matrix names more kinds than there can be.
    #[error(transparent)]
    TooManyKinds(#[from] TooManyKinds),
    /// Sets of sites are not the parts of one resource.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// A list is too long.
    #[error("a list of {0} items is too long; the limit is {MAX_ITEMS}")]
    TooManyItems(usize),
    /// A set or a map does not ascend.
    #[error("it does not come after the one before it")]
    Disorder,
    /// A record is numbered as none is.
    #[error("{0} is not the number of a record: they go from 1 to {LAST_NUMBER}")]
    Number(u64),
    /// A run is counted as none is.
    #[error("{0} is not the number of a run: they go from 1 to {LAST_ATTEMPT}")]
    Attempt(u32),
    /// More than a seal.
    #[error("{0} bytes are not a seal; the limit is {most}", most = Seal::LONGEST)]
    SealTooLong(usize),
    /// Steps in steps in steps.
    #[error("steps stand in each other more than {MAX_DEPTH} deep")]
    TooDeep,
    /// Steps are announced that do not follow.
    #[error("a step is missing")]
    StepMissing,
    /// An action goes on after its end.
    #[error("more steps follow the last one")]
    StepsLeft,
    /// A command that does nothing.
    #[error("the command is empty")]
    NoCommand,
    /// A time limit that nothing stays within, or that is not written as one.
    #[error("it is not a time limit")]
    Timeout,
}

impl Problem {
    /// What the reader of bytes says, in our words.
    pub(super) fn malformed(error: &postcard::Error) -> Self {
        use postcard::Error as E;
        Self::Malformed(match error {
            E::DeserializeUnexpectedEnd => "the end comes too early",
            E::DeserializeBadVarint => "a number is too large for its place",
            E::DeserializeBadUtf8 => "a text is not UTF-8",
            E::DeserializeBadBool => "neither yes nor no",
            E::DeserializeBadOption => "neither something nor nothing",
            E::DeserializeBadEnum | E::SerdeDeCustom => "none of the variants that are known here",
            _ => "it can't be written in this format",
        })
    }
}

impl WireError {
    pub(super) fn at_byte(offset: usize, problem: Problem) -> Self {
        Self { place: format!("byte {offset}"), problem }
    }

    /// The same, seen from outside of a field.
    fn in_field(mut self, field: &str) -> Self {
        let joint = if self.place.is_empty() || self.place.starts_with('[') { "" } else { "." };
        self.place.insert_str(0, joint);
        self.place.insert_str(0, field);
        self
    }
}

impl<P: Into<Problem>> From<P> for WireError {
    fn from(problem: P) -> Self {
        Self { place: String::new(), problem: problem.into() }
    }
}

/// Names the place of an error on its way out, so that a value that is well pays nothing for it.
pub(super) trait At<T> {
    /// The result of a field.
    fn at(self, field: &str) -> Result<T, WireError>;
    /// The result of an item of a list.
    fn at_item(self, n: usize) -> Result<T, WireError>;
}

impl<T, E: Into<WireError>> At<T> for Result<T, E> {
    fn at(self, field: &str) -> Result<T, WireError> {
        self.map_err(|error| error.into().in_field(field))
    }

    fn at_item(self, n: usize) -> Result<T, WireError> {
        self.map_err(|error| error.into().in_field(&format!("[{n}]")))
    }
}
