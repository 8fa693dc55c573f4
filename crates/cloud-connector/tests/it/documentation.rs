//! Tests that the documentation refers only to files that exist, that it lists every dead-letter
//! reason, and that the language check rejects retired terms.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use domain::RejectReason;

fn repository_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns all files that contain documentation: Markdown files, `config.default.toml`, the
/// Makefile and the files in `deploy`.
fn documentation_files() -> Vec<PathBuf> {
    let mut files = vec![
        repository_root().join("config.default.toml"),
        repository_root().join("Makefile"),
    ];
    let mut folders = vec![repository_root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && !["target", "data"].contains(&&*name) {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md")
                || path.starts_with(repository_root().join("deploy"))
            {
                files.push(path);
            }
        }
    }
    files.retain(|file| file.is_file());
    files
}

/// Top-level directories of the repository. If a path in a document starts with one of these
/// directories, the path must exist.
const TOP_LEVEL_DIRECTORIES: &[&str] = &["crates/", "docs/", "dev/", "deploy/", "fuzz/"];

/// Returns the path at the start of `word`, if `word` starts with one of the
/// [`TOP_LEVEL_DIRECTORIES`]. Returns `None` if the path contains a placeholder, for example in
/// `docs/decisions/NNN-title.md`.
fn repository_path(word: &str) -> Option<&str> {
    let directory_prefix = TOP_LEVEL_DIRECTORIES
        .iter()
        .find(|directory| word.starts_with(**directory))?;
    let end = word
        .find(|c: char| !(c.is_ascii_alphanumeric() || "_-./".contains(c)))
        .unwrap_or(word.len());
    let path = word[..end].trim_end_matches('.');
    let is_placeholder = path.contains("NNN") || word[end..].starts_with(['*', '{', '<', '…']);
    (path.len() > directory_prefix.len() && !is_placeholder).then_some(path)
}

#[test]
fn every_path_in_the_documentation_exists() {
    let mut missing_files = Vec::new();
    for file in documentation_files() {
        let text = fs::read_to_string(&file).unwrap();
        let folder = file.parent().unwrap();
        let words = text.split(|c: char| c.is_whitespace() || "`()[]'\",;".contains(c));
        for path in words.filter_map(repository_path) {
            if !repository_root().join(path).exists() && !folder.join(path).exists() {
                missing_files.push(format!("{}: {path}", file.display()));
            }
        }
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            let is_url = target.contains("://") || target.is_empty();
            if !is_url
                && file.extension().is_some_and(|e| e == "md")
                && !folder.join(target).exists()
            {
                missing_files.push(format!("{}: link to {target}", file.display()));
            }
        }
    }
    assert!(
        missing_files.is_empty(),
        "missing files:\n{}",
        missing_files.join("\n")
    );
}

#[test]
fn repository_path_ignores_line_numbers_and_rejects_placeholders() {
    assert_eq!(
        repository_path("crates/api/src/lib.rs:12"),
        Some("crates/api/src/lib.rs")
    );
    assert_eq!(repository_path("docs/."), None);
    assert_eq!(repository_path("docs/decisions/NNN-title.md"), None);
    assert_eq!(repository_path("target/bench"), None);
}

#[test]
fn the_documentation_lists_every_dead_letter_reason() {
    let text = fs::read_to_string(repository_root().join("docs/ARCHITECTURE.md")).unwrap();
    for reason in RejectReason::ALL {
        let row = format!("| `{reason}` | {} |", reason.description());
        assert!(
            text.contains(&row),
            "missing in docs/ARCHITECTURE.md: {row}"
        );
    }
}

#[test]
fn the_language_check_rejects_retired_terms() {
    let folder = tempfile::tempdir().unwrap();
    let passes_check = |text: &str| {
        let file = folder.path().join("sample.rs");
        fs::write(&file, text).unwrap();
        let output = Command::new(repository_root().join("dev/check-language"))
            .arg(&file)
            .output()
            .unwrap();
        output.status.success()
    };
    assert!(passes_check(
        "// The client sends a heartbeat.\nstruct ClientMessage;\n"
    ));
    // The test builds the retired terms at run time. Otherwise the language check would reject this
    // file.
    assert!(!passes_check(&format!("struct {}{};\n", "Sight", "ing")));
    assert!(!passes_check(&format!("// A sign {} life.\n", "of")));
}
