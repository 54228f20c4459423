//! Retired names, from `tests/tests/retired_names.txt`, and the texts that still have one.

/// A retired name and what to say instead.
pub struct Retired {
    /// The word, matched with word boundaries and case; or a file's or folder's name, without its extension.
    pub name: String,
    /// The name is that of a file or folder, and legal as a word.
    pub is_path: bool,
    pub successor: String,
}

/// Reads the list: `word -> successor` or `path: name -> successor` in each line; `#` begins a comment.
pub fn parse(list: &str) -> Result<Vec<Retired>, String> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (left, successor) = line.split_once(" -> ").ok_or_else(|| format!("no successor: {line}"))?;
        let (name, is_path) = match left.strip_prefix("path:") {
            Some(name) => (name.trim(), true),
            None => (left.trim(), false),
        };
        let ok = !name.is_empty()
            && !successor.trim().is_empty()
            && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
        match ok {
            true => Ok(Retired { name: name.into(), is_path, successor: successor.trim().into() }),
            false => Err(format!("not `word -> successor`: {line}")),
        }
    };
    lines.map(entry).collect()
}

/// Each place in a file that has a retired name: `file:line: name (now successor)`.
pub fn find(retired: &[Retired], file: &str, text: &str) -> Vec<String> {
    let parts: Vec<&str> = file.split('/').map(|part| part.split('.').next().unwrap_or(part)).collect();
    let mut found = Vec::new();
    for Retired { name, successor, .. } in
        retired.iter().filter(|r| r.is_path && parts.contains(&r.name.as_str()))
    {
        found.push(format!("{file}: {name} (now {successor})"));
    }
    let words: std::collections::BTreeMap<&str, &Retired> =
        retired.iter().filter(|r| !r.is_path).map(|r| (r.name.as_str(), r)).collect();
    for (n, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            if let Some(retired) = words.get(word) {
                found.push(format!("{file}:{}: {word} (now {})", n + 1, retired.successor));
            }
        }
    }
    found
}
