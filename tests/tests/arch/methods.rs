//! Reads the methods of types and the signatures of functions from Rust sources, except test code.

use super::imports::{Source, words};
use std::collections::BTreeMap;

/// A function of a source.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Number of its line.
    pub line: usize,
    /// The type of the `impl` block that it is in.
    pub owner: Option<String>,
    pub name: String,
    pub is_unsafe: bool,
    /// The words and signs of its parameters.
    pub params: Vec<String>,
    /// The words and signs of its body.
    pub body: Vec<String>,
}

/// Returns the functions of a source that are not nested in others.
pub fn functions(text: &str) -> Vec<Function> {
    let tokens = words(text);
    let mut found = Vec::new();
    read(&tokens, 0, tokens.len(), None, &mut found);
    found
}

/// Number of methods of each type of a crate, all its `impl` blocks together.
pub fn methods(sources: &[Source]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let all = sources.iter().flat_map(|(_, text)| functions(text));
    for owner in all.filter_map(|function| function.owner) {
        *counts.entry(owner).or_insert(0) += 1;
    }
    counts
}

type Token = (usize, String);

fn read(tokens: &[Token], from: usize, end: usize, owner: Option<&str>, found: &mut Vec<Function>) {
    let word = |at: usize| tokens.get(at).map_or("", |(_, word)| word.as_str());
    let mut at = from;
    while at < end {
        match word(at) {
            "impl" if owner.is_none() => {
                let open = next(tokens, at, end, "{");
                let name = owner_of(&tokens[at + 1..open]);
                let close = closing(tokens, open, "{", "}");
                read(tokens, open + 1, close, Some(&name), found);
                at = close;
            }
            "fn" if word(at + 1).starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                let (start, name) = (at, word(at + 1).to_owned());
                let after = if word(at + 2) == "<" { closing(tokens, at + 2, "<", ">") + 1 } else { at + 2 };
                if word(after) != "(" {
                    at += 1;
                    continue;
                }
                let close = closing(tokens, after, "(", ")");
                let params = tokens[after + 1..close].iter().map(|(_, word)| word.clone()).collect();
                let (line, owner) = (tokens[at].0, owner.map(str::to_owned));
                let open = body_of(tokens, close + 1, end);
                at = if open < end && word(open) == "{" { closing(tokens, open, "{", "}") } else { open };
                let body = tokens[open..at].iter().map(|(_, word)| word.clone()).collect();
                let before = tokens[..start].iter().rev().map(|(_, word)| word.as_str());
                let is_unsafe = before
                    .take_while(|word| ["unsafe", "extern"].contains(word))
                    .any(|word| word == "unsafe");
                found.push(Function { line, owner, name, is_unsafe, params, body });
            }
            _ => {}
        }
        at += 1;
    }
}

/// The type that an `impl` block with this head is for.
fn owner_of(head: &[Token]) -> String {
    let words: Vec<&str> = head.iter().map(|(_, word)| word.as_str()).collect();
    let until = words.iter().position(|word| *word == "where").unwrap_or(words.len());
    let (mut depth, mut last, mut of) = (0, "", "");
    for (at, word) in words[..until].iter().enumerate() {
        match *word {
            "<" => depth += 1,
            ">" if at > 0 && words[at - 1] == "-" => {}
            ">" => depth -= 1,
            "for" if depth == 0 => of = "",
            word if depth == 0 && word.starts_with(|c: char| c.is_alphabetic()) => {
                last = word;
                of = word;
            }
            _ => {}
        }
    }
    if of.is_empty() { last.to_owned() } else { of.to_owned() }
}

/// The place of a function's body, or of the `;` in its stead.
fn body_of(tokens: &[Token], from: usize, end: usize) -> usize {
    let mut at = from;
    while at < end {
        match tokens[at].1.as_str() {
            "{" | ";" => return at,
            "(" => at = closing(tokens, at, "(", ")"),
            "[" => at = closing(tokens, at, "[", "]"),
            _ => {}
        }
        at += 1;
    }
    end
}

fn next(tokens: &[Token], from: usize, end: usize, sign: &str) -> usize {
    (from..end).find(|&at| tokens[at].1 == sign).unwrap_or(end)
}

/// The place of the sign that closes the one at `open`; arrows close no angle bracket.
fn closing(tokens: &[Token], open: usize, opens: &str, closes: &str) -> usize {
    let mut depth = 0;
    for at in open..tokens.len() {
        let word = tokens[at].1.as_str();
        let arrow = word == ">" && at > 0 && matches!(tokens[at - 1].1.as_str(), "-" | "=");
        if word == opens {
            depth += 1;
        } else if word == closes && !arrow {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    tokens.len().saturating_sub(1)
}
