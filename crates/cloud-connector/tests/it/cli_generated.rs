//! Tests of what the program generates from its command line: completions, manual pages, the commit.

use std::path::Path;

use test_support::connector_command;

#[path = "../../build.rs"]
#[expect(dead_code, reason = "`main` is for cargo")]
mod build_script;

async fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = connector_command().args(args).output().await.unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// Writes the completion script of a shell to a file.
async fn write_completions(shell: &str, file: &Path) {
    let (code, script, stderr) = run(&["completions", shell]).await;
    assert_eq!(code, Some(0), "{stderr}");
    std::fs::write(file, script).unwrap();
}

#[tokio::test]
async fn bash_completes_commands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("completions.bash");
    write_completions("bash", &script).await;
    for (words, expected) in [
        ("cloud-connector conn", "connections"),
        ("cloud-connector connections re", "reconnect"),
        ("cloud-connector connections list --watc", "--watch"),
        ("cloud-connector dead-letters su", "summary"),
        ("cloud-connector completions z", "zsh"),
        ("cloud-connector connections list --output y", "yaml"),
    ] {
        let complete = format!(
            ". '{}'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             registered=$(complete -p cloud-connector); registered=${{registered#* -F }}; \
             \"${{registered%% *}}\" cloud-connector \"${{COMP_WORDS[COMP_CWORD]}}\" \
             \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let mut bash = tokio::process::Command::new("bash");
        let output = bash
            .args(["--norc", "-c", &complete])
            .output()
            .await
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((stdout.trim(), stderr.trim()), (expected, ""), "{words}");
    }
}

/// `make test-fast` skips these tests: they need shells that `dev/prepare test` installs.
mod third_party_shells {
    use super::write_completions;

    async fn run_shell(shell: &str, args: &[&str]) -> String {
        let mut command = tokio::process::Command::new(shell);
        let output = command.args(args).output().await;
        let output = output.expect("zsh or fish is missing; run `dev/prepare test`");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{shell}: {stderr}");
        assert_eq!(stderr, "", "{shell}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[tokio::test]
    async fn fish_completes_commands_and_options() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("completions.fish");
        write_completions("fish", &script).await;
        for (words, expected) in [
            ("cloud-connector connections re", "reconnect"),
            ("cloud-connector connections list --watc", "--watch"),
            ("cloud-connector connections list --output y", "yaml"),
        ] {
            let complete = format!("source '{}'; complete -C '{words}'", script.display());
            let text = run_shell("fish", &["--no-config", "-c", &complete]).await;
            let completions: Vec<_> = text.lines().map(|line| line.split('\t').next()).collect();
            assert_eq!(completions, [Some(expected)], "{words}: {text}");
        }
    }

    #[tokio::test]
    async fn zsh_loads_the_completions() {
        let folder = tempfile::tempdir().unwrap();
        write_completions("zsh", &folder.path().join("_cloud-connector")).await;
        // -D writes no cache. -u does not ask about the owner of the folder.
        let load = format!(
            "fpath=('{}' $fpath); autoload -Uz compinit; compinit -D -u; \
             autoload +X -Uz _cloud-connector; print -- $_comps[cloud-connector]",
            folder.path().display()
        );
        let text = run_shell("zsh", &["-f", "-c", &load]).await;
        assert_eq!(text, "_cloud-connector\n");
    }
}

#[tokio::test]
async fn completions_exist_for_zsh_and_fish_but_not_for_an_unknown_shell() {
    for (shell, beginning) in [("zsh", "#compdef cloud-connector"), ("fish", "#")] {
        let (code, script, _) = run(&["completions", shell]).await;
        assert_eq!(code, Some(0));
        assert!(script.starts_with(beginning), "{shell}");
        for command in ["connections", "dead-letters", "summary", "reconnect"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let (code, stdout, stderr) = run(&["completions", "tcsh"]).await;
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("bash, zsh, fish"), "{stderr}");
}

#[tokio::test]
async fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("man/man1");
    let (code, _, stderr) = run(&["man", dir.to_str().unwrap()]).await;
    assert_eq!(code, Some(0), "{stderr}");
    for page in [
        "cloud-connector",
        "cloud-connector-connections",
        "cloud-connector-connections-disconnect",
        "cloud-connector-login",
        "cloud-connector-dead-letters-summary",
        "cloud-connector-run",
    ] {
        let text = std::fs::read_to_string(dir.join(format!("{page}.1"))).unwrap();
        assert!(
            text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"),
            "{page}: {text}"
        );
    }
    let text = std::fs::read_to_string(dir.join("cloud-connector-connections-check.1")).unwrap();
    assert!(text.contains("\\-\\-directive"), "{text}");

    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, _, stderr) = run(&["man", file.to_str().unwrap()]).await;
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains(file.to_str().unwrap()) && stderr.contains("give a folder"),
        "{stderr}"
    );
}

fn git(folder: &Path, args: &[&str]) {
    let options = [
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.com",
        "-c",
        "commit.gpgsign=false",
    ];
    let mut git = std::process::Command::new("git");
    let output = git
        .args(options)
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_build_script_reads_the_commit_and_none_outside_a_repository() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository).unwrap();
    std::fs::write(repository.join("Cargo.toml"), "").unwrap();
    assert_eq!(build_script::read_commit(&repository), None);
    git(&repository, &["init", "--quiet", "--initial-branch=main"]);
    // There is a repository, but no commit.
    assert_eq!(build_script::read_commit(&repository), None);
    git(&repository, &["add", "Cargo.toml"]);
    git(&repository, &["commit", "--quiet", "--message=first"]);
    let first = build_script::read_commit(&repository).unwrap();
    assert!(
        first.len() == 12 && first.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{first}"
    );

    // In a working tree of its own, a commit changes one of the files that start the script again.
    let worktree = folder.path().join("worktree");
    git(
        &repository,
        &[
            "worktree",
            "add",
            "--quiet",
            "-b",
            "other",
            worktree.to_str().unwrap(),
        ],
    );
    assert_eq!(
        build_script::read_commit(&worktree).as_deref(),
        Some(first.as_str())
    );
    let contents = || {
        let files = build_script::commit_files(&worktree);
        assert!(!files.is_empty());
        files
            .iter()
            .map(|file| std::fs::read(file).unwrap())
            .collect::<Vec<_>>()
    };
    let before = contents();
    git(
        &worktree,
        &["commit", "--quiet", "--allow-empty", "--message=second"],
    );
    assert_ne!(build_script::read_commit(&worktree).unwrap(), first);
    assert_ne!(contents(), before);

    // An unpacked archive in a folder of another repository.
    let archive = repository.join("archive");
    std::fs::create_dir(&archive).unwrap();
    std::fs::write(archive.join("Cargo.toml"), "").unwrap();
    assert_eq!(build_script::read_commit(&archive), None);
}

#[tokio::test]
async fn the_help_lists_only_filters_under_the_heading_of_the_filters() {
    let (code, help, stderr) = run(&["connections", "list", "-h"]).await;
    assert_eq!(code, Some(0), "{stderr}");
    let (options, rest) = help.split_once("\nFilters:\n").unwrap();
    let (filters, connector) = rest.split_once("\nConnector and API key:\n").unwrap();
    for (option, section) in [
        ("--limit ", options),
        ("--all ", options),
        ("--watch ", options),
        ("--output ", options),
        ("--fqdn ", filters),
        ("--seen-before ", filters),
        ("--org ", connector),
        ("--url ", connector),
    ] {
        assert!(section.contains(option), "{option}: {help}");
    }
}
