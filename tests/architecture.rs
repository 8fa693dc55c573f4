//! Checks the dependencies between the modules of `src`: which module may import which, and which
//! may use which external crate. A failing test prints the file and the forbidden import.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that every module may import, except those in `FOUNDATION`.
const IMPORTABLE_BY_ALL: &[&str] = &[
    "domain",
    "protocol",
    "config",
    "telemetry",
    "shutdown",
    "rate_limit",
];

/// Every module, and what it may import besides `IMPORTABLE_BY_ALL`.
const MODULES: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &[]),
    ("config", &[]),
    ("telemetry", &[]),
    ("shutdown", &[]),
    ("rate_limit", &[]),
    ("mqtt", &[]),
    ("tls_server", &[]),
    ("broker", &["tls_server"]),
    ("http_client", &[]),
    ("tenant", &["http_client"]),
    ("store", &[]),
    ("kafka", &[]),
    ("integrations", &["kafka", "http_client"]),
    ("record", &["tenant", "store", "integrations"]),
    ("ingest", &["record", "mqtt", "broker", "kafka"]),
    ("jobs", &["store", "tenant", "integrations", "delivery"]),
    ("delivery", &["mqtt", "broker"]),
    ("api", &["delivery", "store", "tenant", "tls_server"]),
    (
        "runtime",
        &[
            "mqtt",
            "broker",
            "tenant",
            "store",
            "record",
            "ingest",
            "delivery",
            "api",
            "kafka",
            "jobs",
            "integrations",
            "tls_server",
        ],
    ),
    (
        "cli",
        &[
            "mqtt",
            "broker",
            "tenant",
            "store",
            "record",
            "ingest",
            "delivery",
            "api",
            "kafka",
            "jobs",
            "integrations",
            "runtime",
            "tls_server",
        ],
    ),
];

/// The modules of `IMPORTABLE_BY_ALL`, and the only modules that each may import.
const FOUNDATION: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &["domain"]),
    ("config", &[]),
    ("shutdown", &[]),
    ("rate_limit", &[]),
    ("telemetry", &["config", "domain", "protocol"]),
];

/// External crates, and the modules that may use each.
const CRATES: &[(&str, &[&str])] = &[
    ("mqtt5", &["broker"]),
    ("rumqttc", &["mqtt"]),
    ("rdkafka", &["kafka"]),
    ("hyper", &["api"]),
    ("hyper_util", &["api"]),
    ("sqlx", &["store"]),
    ("axum", &["api"]),
    ("utoipa", &["api"]),
    ("utoipa_axum", &["api"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("rcgen", &["cli"]),
    (
        "rustls",
        &["tls_server", "broker", "api", "mqtt", "http_client"],
    ),
    ("tokio_rustls", &["tls_server", "broker"]),
    ("x509_parser", &["tls_server", "broker"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
    ("tracing_subscriber", &["telemetry"]),
    ("toml", &["config", "cli"]),
    ("reqwest", &["http_client", "tenant", "integrations"]),
    ("moka", &["tenant", "integrations"]),
    ("anyhow", &["cli", "runtime"]),
];

/// Crates that every `tests.rs` may use, to fake the services of others.
const CRATES_FOR_TESTS: &[&str] = &["axum"];

/// A source file.
struct SourceFile {
    /// The top-level module that the file belongs to.
    module: String,
    /// The path below `src`.
    path: PathBuf,
    /// The text without comments.
    code: String,
}

fn source_files() -> Vec<SourceFile> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            if file.is_dir() {
                folders.push(file);
            } else if file.extension().is_some_and(|extension| extension == "rs") {
                let path = file.strip_prefix(&src).unwrap().to_owned();
                let module = path.iter().next().unwrap().to_str().unwrap();
                files.push(SourceFile {
                    module: module.trim_end_matches(".rs").to_owned(),
                    code: without_comments(&fs::read_to_string(&file).unwrap()),
                    path,
                });
            }
        }
    }
    assert!(files.len() > 40, "only {} source files found", files.len());
    files
}

/// Removes comments and keeps the line numbers.
fn without_comments(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// Returns the modules in paths such as `crate::module` and `use crate::{module, …}`, each with its
/// line number.
fn imported_modules(code: &str) -> BTreeSet<(usize, String)> {
    let mut modules = BTreeSet::new();
    for (offset, _) in code.match_indices("crate::") {
        let line = code[..offset].matches('\n').count() + 1;
        let rest = &code[offset + "crate::".len()..];
        for module in first_segments(rest) {
            modules.insert((line, module));
        }
    }
    modules
}

/// Returns the first segment of a path, or the first segments of a list of paths in braces.
fn first_segments(rest: &str) -> Vec<String> {
    let first_segment = |text: &str| {
        let text = text.trim_start();
        let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let Some(list) = rest.strip_prefix('{') else {
        return vec![first_segment(rest)];
    };
    let mut segments = vec![first_segment(list)];
    let mut depth = 1;
    for (offset, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => segments.push(first_segment(&list[offset + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    segments.retain(|segment| !segment.is_empty());
    segments
}

/// Returns whether a line of code contains a path into this crate.
fn uses_crate(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(offset, _)| {
        let before = code[..offset].chars().next_back();
        let after = &code[offset + name.len()..];
        let starts_path =
            !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '"' | '/'));
        starts_path
            && (after.starts_with("::") || after.starts_with("!(") || after.starts_with(';'))
            || code.trim_start().starts_with(&format!("use {name}"))
                && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn every_source_file_belongs_to_a_listed_module() {
    let listed: BTreeSet<&str> = MODULES.iter().map(|(module, _)| *module).collect();
    for file in source_files() {
        if !matches!(file.module.as_str(), "main" | "lib") {
            assert!(
                listed.contains(file.module.as_str()),
                "{} belongs to no module in MODULES",
                file.path.display()
            );
        }
    }
}

#[test]
fn modules_import_only_allowed_modules() {
    let mut forbidden = Vec::new();
    for SourceFile { module, path, code } in source_files() {
        let Some((_, allowed)) = MODULES.iter().find(|(name, _)| *name == module) else {
            continue;
        };
        let foundation = FOUNDATION.iter().find(|(name, _)| *name == module);
        for (line, imported) in imported_modules(&code) {
            let name = imported.as_str();
            let is_allowed = imported == module
                || match foundation {
                    Some((_, allowed)) => allowed.contains(&name),
                    None => IMPORTABLE_BY_ALL.contains(&name) || allowed.contains(&name),
                };
            if !is_allowed {
                forbidden.push(format!("src/{}:{line}: {module} → {name}", path.display()));
            }
        }
    }
    assert!(
        forbidden.is_empty(),
        "forbidden imports:\n{}",
        forbidden.join("\n")
    );
}

#[test]
fn external_crates_are_used_only_in_allowed_modules() {
    let mut forbidden = Vec::new();
    for SourceFile { module, path, code } in source_files() {
        let is_test = path.ends_with("tests.rs");
        for (line, text) in numbered_lines(&code) {
            for (name, modules) in CRATES {
                if is_test && CRATES_FOR_TESTS.contains(name) {
                    continue;
                }
                if uses_crate(text, name) && !modules.contains(&module.as_str()) {
                    forbidden.push(format!(
                        "src/{}:{line}: {module} uses {name}",
                        path.display()
                    ));
                }
            }
        }
    }
    assert!(
        forbidden.is_empty(),
        "forbidden uses of crates:\n{}",
        forbidden.join("\n")
    );
}

#[test]
fn only_config_reads_the_environment() {
    for SourceFile { module, path, code } in source_files() {
        for (line, text) in numbered_lines(&code) {
            let reads_environment = text.contains("env::var") || text.contains("env::vars");
            assert!(
                !reads_environment || module == "config",
                "src/{}:{line} reads the environment",
                path.display()
            );
        }
    }
}

#[test]
fn the_checks_detect_imports_and_crates() {
    let imported = |code: &str| {
        let modules = imported_modules(code).into_iter().map(|(_, module)| module);
        modules.collect::<Vec<_>>()
    };
    assert_eq!(
        imported("use crate::{\n    runtime::{self, roles},\n    telemetry,\n};"),
        ["runtime", "telemetry"]
    );
    assert_eq!(imported("let x: crate::store::StoredState;"), ["store"]);
    assert!(uses_crate("use sqlx::Row as _;", "sqlx"));
    assert!(uses_crate("    sqlx::query(SQL)", "sqlx"));
    assert!(uses_crate("x: Result<(), sqlx::Error>", "sqlx"));
    assert!(!uses_crate("let toml_path = 3;", "toml"));
    assert!(!uses_crate("use crate::telemetry::metrics;", "metrics"));
}
