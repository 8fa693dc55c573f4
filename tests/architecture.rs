//! Checks the dependencies of the modules in `src`: each module may import only listed modules, and
//! may use only listed external crates. A failing test prints the file and the forbidden import.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that every other module may import. Their own imports are listed in
/// `FOUNDATION_MODULES`.
const MODULES_IMPORTABLE_BY_ALL: &[&str] = &[
    "domain",
    "protocol",
    "config",
    "telemetry",
    "shutdown",
    "rate_limit",
];

/// All modules. Each entry contains a module, and the modules that it may import in addition to
/// `MODULES_IMPORTABLE_BY_ALL`.
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

/// The modules in `MODULES_IMPORTABLE_BY_ALL`. Each entry contains a module, and the only modules
/// that it may import.
const FOUNDATION_MODULES: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("protocol", &["domain"]),
    ("config", &[]),
    ("shutdown", &[]),
    ("rate_limit", &[]),
    ("telemetry", &["config", "domain", "protocol"]),
];

/// External crates that only some modules may use. Each entry contains a crate, and the modules
/// that may use the crate.
const RESTRICTED_CRATES: &[(&str, &[&str])] = &[
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

/// Crates that every file `tests.rs` may use, for fakes of external services.
const CRATES_ALLOWED_IN_TESTS: &[&str] = &["axum"];

/// A source file.
struct SourceFile {
    /// The top-level module that the file belongs to.
    module: String,
    /// The path of the file, relative to `src`.
    path: PathBuf,
    /// The content of the file without comments.
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

/// Removes comments. Keeps line breaks, so line numbers do not change.
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

/// Returns the modules in paths such as `crate::module` and `use crate::{module, …}`, together with
/// the line number of each path.
fn imported_modules(code: &str) -> BTreeSet<(usize, String)> {
    let mut modules = BTreeSet::new();
    for (offset, _) in code.match_indices("crate::") {
        let line_number = code[..offset].matches('\n').count() + 1;
        let path = &code[offset + "crate::".len()..];
        for module in first_segments(path) {
            modules.insert((line_number, module));
        }
    }
    modules
}

/// Returns the first segment of the path at the start of `code`. If `code` starts with a list of
/// paths in braces, returns the first segment of each path.
fn first_segments(code: &str) -> Vec<String> {
    let first_segment = |text: &str| {
        let text = text.trim_start();
        let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let Some(path_list) = code.strip_prefix('{') else {
        return vec![first_segment(code)];
    };
    let mut segments = vec![first_segment(path_list)];
    let mut depth = 1;
    for (offset, c) in path_list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => segments.push(first_segment(&path_list[offset + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    segments.retain(|segment| !segment.is_empty());
    segments
}

/// Returns whether a line of code contains a path that starts with this crate name.
fn uses_crate(line: &str, crate_name: &str) -> bool {
    line.match_indices(crate_name).any(|(offset, _)| {
        let char_before = line[..offset].chars().next_back();
        let text_after = &line[offset + crate_name.len()..];
        let is_path_start =
            !char_before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '"' | '/'));
        is_path_start
            && (text_after.starts_with("::")
                || text_after.starts_with("!(")
                || text_after.starts_with(';'))
            || line.trim_start().starts_with(&format!("use {crate_name}"))
                && !text_after.starts_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn every_source_file_belongs_to_a_listed_module() {
    let listed_modules: BTreeSet<&str> = MODULES.iter().map(|(module, _)| *module).collect();
    for file in source_files() {
        if !matches!(file.module.as_str(), "main" | "lib") {
            assert!(
                listed_modules.contains(file.module.as_str()),
                "{} belongs to no module in MODULES",
                file.path.display()
            );
        }
    }
}

#[test]
fn modules_import_only_allowed_modules() {
    let mut forbidden_imports = Vec::new();
    for SourceFile { module, path, code } in source_files() {
        let Some((_, allowed_modules)) = MODULES.iter().find(|(name, _)| *name == module) else {
            continue;
        };
        let foundation_module = FOUNDATION_MODULES.iter().find(|(name, _)| *name == module);
        for (line_number, imported) in imported_modules(&code) {
            let imported = imported.as_str();
            let is_allowed = imported == module
                || match foundation_module {
                    Some((_, allowed_modules)) => allowed_modules.contains(&imported),
                    None => {
                        MODULES_IMPORTABLE_BY_ALL.contains(&imported)
                            || allowed_modules.contains(&imported)
                    }
                };
            if !is_allowed {
                let location = format!("src/{}:{line_number}", path.display());
                forbidden_imports.push(format!("{location}: {module} → {imported}"));
            }
        }
    }
    assert!(
        forbidden_imports.is_empty(),
        "forbidden imports:\n{}",
        forbidden_imports.join("\n")
    );
}

#[test]
fn external_crates_are_used_only_in_allowed_modules() {
    let mut forbidden_uses = Vec::new();
    for SourceFile { module, path, code } in source_files() {
        let is_test_file = path.ends_with("tests.rs");
        for (line_number, line) in numbered_lines(&code) {
            for (crate_name, allowed_modules) in RESTRICTED_CRATES {
                if is_test_file && CRATES_ALLOWED_IN_TESTS.contains(crate_name) {
                    continue;
                }
                if uses_crate(line, crate_name) && !allowed_modules.contains(&module.as_str()) {
                    let path = path.display();
                    forbidden_uses.push(format!(
                        "src/{path}:{line_number}: {module} uses {crate_name}"
                    ));
                }
            }
        }
    }
    assert!(
        forbidden_uses.is_empty(),
        "forbidden uses of crates:\n{}",
        forbidden_uses.join("\n")
    );
}

#[test]
fn only_config_reads_the_environment() {
    for SourceFile { module, path, code } in source_files() {
        for (line_number, line) in numbered_lines(&code) {
            let reads_environment = line.contains("env::var") || line.contains("env::vars");
            assert!(
                !reads_environment || module == "config",
                "src/{}:{line_number} reads the environment",
                path.display()
            );
        }
    }
}

#[test]
fn imported_modules_and_used_crates_are_detected() {
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
