//! Message sizes of `-s`: one, pieces of one message, or a range.

use tools_common::units::parse_bytes;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sizes {
    /// One message of these pieces.
    Pieces(Vec<usize>),
    /// One test for each power of two between, and for both ends.
    Range(usize, usize),
}

impl Sizes {
    /// Parses `8`, `64k`, `16,48`, `1k:16` (sixteen pieces) or `8..1m`.
    pub fn parse(text: &str) -> Result<Sizes, String> {
        match text.split_once("..") {
            Some((from, to)) => match (parse_bytes(from)?, parse_bytes(to)?) {
                (from, to) if from <= to => Ok(Sizes::Range(from, to)),
                _ => Err(format!("'{text}' is not a range of sizes (smallest..largest)")),
            },
            None => {
                let some = text.split(',').map(Sizes::some).collect::<Result<Vec<_>, _>>()?;
                Ok(Sizes::Pieces(some.concat()))
            }
        }
    }

    fn some(text: &str) -> Result<Vec<usize>, String> {
        let Some((size, count)) = text.split_once(':') else { return parse_bytes(text).map(|n| vec![n]) };
        match count.parse::<usize>() {
            // `Spec::check` has the exact limit.
            Ok(count @ 1..=1024) => Ok(vec![parse_bytes(size)?; count]),
            _ => Err(format!(
                "'{text}' is not a size and how many pieces of it (1 to 1024), such as 1k:16; a sweep is {size}..{count}"
            )),
        }
    }

    /// The sizes, each as the pieces of a message.
    pub fn all(&self) -> Vec<Vec<usize>> {
        match self {
            Sizes::Pieces(pieces) => vec![pieces.clone()],
            Sizes::Range(from, to) => {
                let next = |n: &usize| n.checked_add(1).and_then(usize::checked_next_power_of_two);
                let mut all: Vec<Vec<usize>> = std::iter::successors(Some(*from), next)
                    .take_while(|n| n < to)
                    .map(|n| vec![n])
                    .collect();
                all.push(vec![*to]);
                all
            }
        }
    }
}
