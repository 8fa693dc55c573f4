//! Documentation refers only to files that exist, and the language check rejects retired terms.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files with documentation: Markdown files, configuration samples and scripts.
fn documents() -> Vec<PathBuf> {
    let mut files = vec![root().join("config.default.toml"), root().join("Makefile")];
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && !["target", "data"].contains(&&*name) {
                folders.push(path);
            } else if name.ends_with(".md") || path.starts_with(root().join("deploy")) {
                files.push(path);
            }
        }
    }
    files.retain(|file| file.is_file());
    files
}

/// Top-level directories of the repository. A path in a document that starts with one of them
/// must exist.
const DIRECTORIES: &[&str] = &[
    "src/",
    "tests/",
    "docs/",
    "dev/",
    "deploy/",
    "benches/",
    "fuzz/",
    "migrations/",
];

/// The path that a word names, if it starts in one of our directories. Text in which the path
/// continues after a placeholder, as in `docs/decisions/NNN-title.md`, is not a path.
fn repository_path(word: &str) -> Option<&str> {
    let start = DIRECTORIES
        .iter()
        .find(|directory| word.starts_with(**directory))?;
    let end = word
        .find(|c: char| !(c.is_ascii_alphanumeric() || "_-./".contains(c)))
        .unwrap_or(word.len());
    let path = word[..end].trim_end_matches('.');
    let is_placeholder = path.contains("NNN") || word[end..].starts_with(['*', '{', '<', '…']);
    (path.len() > start.len() && !is_placeholder).then_some(path)
}

#[test]
fn every_path_named_in_documentation_exists() {
    let mut missing = Vec::new();
    for file in documents() {
        let text = fs::read_to_string(&file).unwrap();
        let folder = file.parent().unwrap();
        let words = text.split(|c: char| c.is_whitespace() || "`()[]'\",;".contains(c));
        for path in words.filter_map(repository_path) {
            if !root().join(path).exists() && !folder.join(path).exists() {
                missing.push(format!("{}: {path}", file.display()));
            }
        }
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            let is_url = target.contains("://") || target.is_empty();
            if !is_url
                && file.extension().is_some_and(|e| e == "md")
                && !folder.join(target).exists()
            {
                missing.push(format!("{}: link to {target}", file.display()));
            }
        }
    }
    assert!(missing.is_empty(), "missing files:\n{}", missing.join("\n"));
}

#[test]
fn a_path_is_recognized_up_to_its_end() {
    assert_eq!(repository_path("src/lib.rs:12"), Some("src/lib.rs"));
    assert_eq!(repository_path("docs/."), None);
    assert_eq!(repository_path("docs/decisions/NNN-title.md"), None);
    assert_eq!(repository_path("target/bench"), None);
}

#[test]
fn the_language_check_rejects_retired_terms() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let file = folder.path().join("sample.rs");
        fs::write(&file, text).unwrap();
        let check = Command::new(root().join("dev/check-language"))
            .arg(&file)
            .output()
            .unwrap();
        check.status.success()
    };
    assert!(check(
        "// The client sends a heartbeat.\nstruct ClientMessage;\n"
    ));
    // Built at run time, so that this file does not contain the terms.
    assert!(!check(&format!("struct {}{};\n", "Sight", "ing")));
    assert!(!check(&format!("// A sign {} life.\n", "of")));
}
