//! Reads the imports of Rust sources, except test code: `use` trees and inline `crate::`, `super::` and
//! `self::` paths. Used by `arch.rs`; reads text only, so that its own tests can plant sources.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A source file: its path below the workspace and its text.
pub type Source = (String, String);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Import {
    /// Line number, from 1.
    pub line: usize,
    /// The imported path; begins with `crate` or with the name of another crate.
    pub path: Vec<String>,
}

/// The module of a file, without the crate's name: `ucp/src/rdm/recv/mod.rs` is `["rdm", "recv"]`.
pub fn module_of(file: &str) -> Vec<String> {
    let below = file.split_once("/src/").map_or(file, |(_, below)| below);
    let mut parts: Vec<String> = below.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    parts
}

/// Replaces comments and the contents of string and character literals by blanks; line breaks stay.
fn without_comments_and_strings(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    let mut i = 0;
    while i < chars.len() {
        let rest = |n: usize| chars.get(i + n).copied().unwrap_or('\0');
        let end = match (chars[i], rest(1)) {
            ('/', '/') => (i..chars.len()).find(|k| chars[*k] == '\n').unwrap_or(chars.len()),
            ('/', '*') => block_comment_end(&chars, i),
            ('"', _) => string_end(&chars, i + 1),
            ('r', '"' | '#') if i == 0 || !is_word(chars[i - 1]) => {
                raw_string_end(&chars, i).unwrap_or(i + 1)
            }
            // A character literal, not a lifetime.
            ('\'', '\\') => (i + 3..chars.len()).find(|k| chars[*k] == '\'').map_or(chars.len(), |k| k + 1),
            ('\'', _) if rest(2) == '\'' => i + 3,
            _ => i,
        };
        match end == i || (end == i + 1 && chars[i] == 'r') {
            true => {
                out.push(chars[i]);
                i += 1;
            }
            false => {
                out.extend(chars[i..end].iter().map(|c| blank(*c)));
                i = end;
            }
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return None;
    }
    let closes = |at: usize| chars[at] == '"' && (1..=hashes).all(|k| chars.get(at + k) == Some(&'#'));
    let end = (start + 2 + hashes..chars.len()).find(|at| closes(*at));
    Some(end.map_or(chars.len(), |at| at + 1 + hashes))
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Word(String),
    Path,
    Char(char),
}

/// Words, `::` and single characters, with their line numbers.
fn tokens(text: &str) -> Vec<(usize, Token)> {
    let clean = without_comments_and_strings(text);
    let mut all = Vec::new();
    for (n, line) in clean.lines().enumerate() {
        let chars: Vec<char> = line.chars().collect();
        let mut i = 0;
        while i < chars.len() {
            let start = i;
            if is_word(chars[i]) {
                i = (i..chars.len()).find(|k| !is_word(chars[*k])).unwrap_or(chars.len());
                all.push((n + 1, Token::Word(chars[start..i].iter().collect())));
            } else if chars[i] == ':' && chars.get(i + 1) == Some(&':') {
                all.push((n + 1, Token::Path));
                i += 2;
            } else {
                if !chars[i].is_whitespace() {
                    all.push((n + 1, Token::Char(chars[i])));
                }
                i += 1;
            }
        }
    }
    all
}

/// Words and signs outside tests, with their line numbers.
pub fn words(text: &str) -> Vec<(usize, String)> {
    let text_of = |token| match token {
        Token::Word(word) => word,
        Token::Path => "::".to_owned(),
        Token::Char(sign) => sign.to_string(),
    };
    without_tests(tokens(text)).into_iter().map(|(line, token)| (line, text_of(token))).collect()
}

fn closing(tokens: &[(usize, Token)], open: usize) -> usize {
    let mut depth = 0;
    for (i, (_, token)) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Char('{' | '[' | '(') => depth += 1,
            Token::Char('}' | ']' | ')') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// Removes the items under `#[cfg(test)]` and the like.
fn without_tests(tokens: Vec<(usize, Token)>) -> Vec<(usize, Token)> {
    let word = |i: usize, text: &str| matches!(tokens.get(i), Some((_, Token::Word(w))) if w == text);
    let is = |i: usize, c: char| matches!(tokens.get(i), Some((_, Token::Char(d))) if *d == c);
    let (mut kept, mut i) = (Vec::new(), 0);
    while i < tokens.len() {
        if !(is(i, '#') && is(i + 1, '[') && word(i + 2, "cfg")) {
            kept.push(tokens[i].clone());
            i += 1;
            continue;
        }
        let end = closing(&tokens, i + 1);
        let tests = (i..end).any(|k| word(k, "test")) && !(i..end).any(|k| word(k, "not"));
        i = end;
        if !tests {
            continue;
        }
        // Further attributes, then an item up to its `;` or closing brace.
        while is(i, '#') && is(i + 1, '[') {
            i = closing(&tokens, i + 1);
        }
        while i < tokens.len() {
            match &tokens[i].1 {
                Token::Char(';') => {
                    i += 1;
                    break;
                }
                Token::Char('{') => {
                    let is_use = (0..i).rev().map(|k| &tokens[k].1).find(|t| matches!(t, Token::Word(w) if w == "use" || w == "mod" || w == "fn" || w == "impl"));
                    let is_use = matches!(is_use, Some(Token::Word(w)) if w == "use");
                    i = closing(&tokens, i);
                    if !is_use {
                        break;
                    }
                }
                Token::Char('(' | '[') => i = closing(&tokens, i),
                _ => i += 1,
            }
        }
    }
    kept
}

/// All imports of a file whose module is `module`, as paths from the crate's root or from another crate.
pub fn imports(module: &[String], text: &str) -> Vec<Import> {
    let tokens = without_tests(tokens(text));
    let mut found = BTreeSet::new();
    let mut inline: Vec<(String, usize)> = Vec::new();
    let (mut depth, mut i) = (0usize, 0);
    while i < tokens.len() {
        let (line, token) = &tokens[i];
        let here: Vec<String> =
            module.iter().cloned().chain(inline.iter().map(|(name, _)| name.clone())).collect();
        match token {
            Token::Char('{') => depth += 1,
            Token::Char('}') => {
                depth = depth.saturating_sub(1);
                inline.retain(|(_, at)| *at < depth + 1);
            }
            Token::Word(word) if word == "mod" => {
                if let (Some((_, Token::Word(name))), Some((_, Token::Char('{')))) =
                    (tokens.get(i + 1), tokens.get(i + 2))
                {
                    inline.push((name.clone(), depth + 1));
                }
            }
            Token::Word(word) if word == "use" => {
                let mut leaves = Vec::new();
                i = use_tree(&tokens, i + 1, &[], &mut leaves);
                found.extend(
                    leaves.into_iter().map(|path| Import { line: *line, path: absolute(&here, path) }),
                );
                continue;
            }
            Token::Word(word) if is_path_start(word, &tokens, i) => {
                let (path, end) = plain_path(&tokens, i);
                found.insert(Import { line: *line, path: absolute(&here, path) });
                i = end;
                continue;
            }
            _ => {}
        }
        i += 1;
    }
    found.into_iter().collect()
}

/// An inline path: `crate::`, `super::`, `self::`, or one of the workspace's crates.
fn is_path_start(word: &str, tokens: &[(usize, Token)], at: usize) -> bool {
    let begins =
        !matches!(at.checked_sub(1).and_then(|k| tokens.get(k)), Some((_, Token::Path | Token::Char('$'))));
    let names = ["crate", "super", "self", "ucs", "uct", "ucp"].contains(&word);
    begins && names && matches!(tokens.get(at + 1), Some((_, Token::Path)))
}

fn plain_path(tokens: &[(usize, Token)], start: usize) -> (Vec<String>, usize) {
    let (mut path, mut i) = (Vec::new(), start);
    while let Some((_, Token::Word(word))) = tokens.get(i) {
        path.push(word.clone());
        match tokens.get(i + 1) {
            Some((_, Token::Path)) => i += 2,
            _ => return (path, i + 1),
        }
    }
    (path, i)
}

/// Collects the leaves of a `use` tree that begins at `at`; answers the position behind it.
fn use_tree(tokens: &[(usize, Token)], at: usize, head: &[String], leaves: &mut Vec<Vec<String>>) -> usize {
    let (mut path, mut i, mut branched) = (head.to_vec(), at, false);
    while let Some((_, token)) = tokens.get(i) {
        match token {
            Token::Word(word) if word == "as" => i += 2,
            Token::Word(word) => {
                path.push(word.clone());
                i += 1;
            }
            Token::Path => i += 1,
            Token::Char('*') => {
                path.push("*".into());
                i += 1;
            }
            Token::Char('{') => {
                branched = true;
                i += 1;
                while !matches!(tokens.get(i), Some((_, Token::Char('}'))) | None) {
                    i = use_tree(tokens, i, &path, leaves);
                    if matches!(tokens.get(i), Some((_, Token::Char(',')))) {
                        i += 1;
                    }
                }
                i += 1;
            }
            _ => break,
        }
    }
    if !branched && path.len() > head.len() {
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        leaves.push(path);
    }
    i
}

/// Resolves `crate`, `self` and `super` of a path used in the module `here`.
fn absolute(here: &[String], path: Vec<String>) -> Vec<String> {
    let from_root = |module: &[String], rest: &[String]| {
        std::iter::once("crate".to_owned())
            .chain(module.iter().cloned())
            .chain(rest.iter().cloned())
            .collect()
    };
    let supers = path
        .iter()
        .skip(usize::from(path.first().is_some_and(|p| p == "self")))
        .take_while(|p| *p == "super")
        .count();
    match path.first().map(String::as_str) {
        Some("self") if supers == 0 => from_root(here, &path[1..]),
        Some("self") => from_root(&here[..here.len().saturating_sub(supers)], &path[1 + supers..]),
        Some("super") => from_root(&here[..here.len().saturating_sub(supers)], &path[supers..]),
        _ => path,
    }
}

/// The files of a folder that import each other. A file that is the parent of others (`mod.rs`, or `x.rs`
/// beside a folder `x/`) is a facade: it declares, re-exports and may hold the folder's central type, and is
/// no node.
pub struct Graph<'a> {
    nodes: BTreeMap<Vec<String>, &'a str>,
    /// For each file, the files that it imports and the import that does it.
    edges: BTreeMap<&'a str, BTreeMap<&'a str, Import>>,
}

impl<'a> Graph<'a> {
    /// Reads the imports of all `sources`, which are files of one crate.
    pub fn new(sources: &'a [Source]) -> Graph<'a> {
        let modules: Vec<(Vec<String>, &'a Source)> = sources.iter().map(|s| (module_of(&s.0), s)).collect();
        let is_parent = |module: &[String], file: &str| {
            file.ends_with("/mod.rs")
                || modules.iter().any(|(other, _)| other.len() > module.len() && other.starts_with(module))
        };
        let nodes: BTreeMap<Vec<String>, &'a str> = modules
            .iter()
            .filter(|(module, (file, _))| !is_parent(module, file))
            .map(|(module, (file, _))| (module.clone(), file.as_str()))
            .collect();
        let mut graph = Graph { nodes, edges: BTreeMap::new() };
        for (module, (file, text)) in &modules {
            if graph.nodes.contains_key(module) {
                let imported = imports(module, text).into_iter();
                let edges = imported.filter_map(|import| Some((graph.file_of(&import.path)?, import)));
                graph.edges.insert(file, edges.filter(|(to, _)| to != file).collect());
            }
        }
        graph
    }

    /// The file whose module is the longest beginning of `path`.
    fn file_of(&self, path: &[String]) -> Option<&'a str> {
        let below = path.strip_prefix(&["crate".to_owned()])?;
        (1..=below.len()).rev().find_map(|len| self.nodes.get(&below[..len]).copied())
    }

    /// The shortest circle of imports, if there is any: a line for each import that ties it.
    pub fn circle(&self) -> Option<Vec<String>> {
        self.edges.keys().filter_map(|start| self.circle_through(start)).min_by_key(Vec::len)
    }

    /// The largest sets of files each of which reaches every other.
    pub fn knots(&self) -> Vec<Vec<&'a str>> {
        let reach: BTreeMap<&str, BTreeSet<&'a str>> =
            self.edges.keys().map(|file| (*file, self.reachable(file))).collect();
        let mut knots = BTreeSet::new();
        for (file, all) in &reach {
            let knot: Vec<&'a str> = all
                .iter()
                .copied()
                .filter(|other| reach.get(other).is_some_and(|r| r.contains(file)))
                .collect();
            if !knot.is_empty() {
                knots.insert(knot);
            }
        }
        knots.into_iter().collect()
    }

    fn reachable(&self, start: &str) -> BTreeSet<&'a str> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            for to in self.edges.get(file).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(*to) {
                    open.push(to);
                }
            }
        }
        seen
    }

    fn circle_through(&self, start: &'a str) -> Option<Vec<String>> {
        let mut came_from: BTreeMap<&str, &'a str> = BTreeMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(file) = open.pop_front() {
            for to in self.edges.get(file)?.keys() {
                if *to == start {
                    came_from.insert(start, file);
                    return Some(self.tell(start, &came_from));
                }
                if !came_from.contains_key(to) {
                    came_from.insert(to, file);
                    open.push_back(to);
                }
            }
        }
        None
    }

    fn tell(&self, start: &str, came_from: &BTreeMap<&str, &'a str>) -> Vec<String> {
        let (mut lines, mut to) = (Vec::new(), start);
        loop {
            let from = came_from[to];
            let import = &self.edges[from][to];
            lines.push(format!("{from}:{}: imports {}", import.line, import.path.join("::")));
            to = from;
            if to == start {
                lines.reverse();
                return lines;
            }
        }
    }
}
