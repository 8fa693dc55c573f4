//! Named profiles in `~/.config/cloud-connector/config.toml`: addresses and API keys of connectors.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::RestError;
use service::settings::{ExposeSecret as _, SecretString};

/// Name of the profile that commands use without `--profile`.
pub(in crate::cli) const DEFAULT_PROFILE: &str = "default";

/// Address and API key of a connector.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::cli) struct Profile {
    pub url: String,
    pub key: Option<SecretString>,
    pub key_file: Option<PathBuf>,
    pub key_name: Option<String>,
    pub org_id: Option<String>,
    /// PEM file with additional CA certificates for `https://` addresses.
    pub ca_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

/// Returns the profile with this name. Returns `None` if the file has no such profile or does not
/// exist.
pub(super) fn find_profile(file: &Path, name: &str) -> Result<Option<Profile>, RestError> {
    let mut profiles = read_profiles(file)?;
    let Some(profile) = profiles.remove(name) else {
        return Ok(None);
    };
    if profile.key.is_some() {
        check_permissions(file)?;
    }
    Ok(Some(profile))
}

/// Returns the profile with this name.
pub(super) fn require_profile(file: &Path, name: &str) -> Result<Profile, RestError> {
    if let Some(profile) = find_profile(file, name)? {
        return Ok(profile);
    }
    let names: Vec<String> = read_profiles(file)?.into_keys().collect();
    let existing = if names.is_empty() {
        "the file has no profiles".to_owned()
    } else {
        format!("its profiles are: {}", names.join(", "))
    };
    Err(RestError::Usage(format!(
        "there is no profile {name:?} in {} ({existing}); run `cloud-connector login --profile {name}` \
         to add [profiles.{name}], or choose another profile",
        file.display()
    )))
}

fn read_profiles(file: &Path) -> Result<BTreeMap<String, Profile>, RestError> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => {
            return Err(RestError::Usage(format!(
                "cannot read {}: {error}; check its permissions, or give --url and --key-file",
                file.display()
            )));
        }
    };
    // The message of the error only: its text would contain the line, which can contain a key.
    let profiles: ProfileFile = toml::from_str(&text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text[..span.start].lines().count().max(1));
        RestError::Usage(format!(
            "{} line {line} is invalid: {}; correct the file, or give --url and --key-file",
            file.display(),
            error.message()
        ))
    })?;
    Ok(profiles.profiles)
}

/// Checks that no other user can read a file that contains a key.
fn check_permissions(file: &Path) -> Result<(), RestError> {
    let mode = std::fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode());
    let mode_of_others = mode & 0o077;
    if mode_of_others == 0 {
        return Ok(());
    }
    let file = file.display();
    Err(RestError::Usage(format!(
        "{file} contains a key and other users have access to the file; run `chmod 600 {file}`"
    )))
}

/// Adds a profile to the file, or replaces the profile with the same name. Other profiles and comments
/// remain. Only the owner can read the file. A crash leaves the old or the new file.
pub(in crate::cli) fn save_profile(
    file: &Path,
    name: &str,
    profile: &Profile,
) -> Result<(), RestError> {
    // Reports an invalid file instead of replacing it.
    read_profiles(file)?;
    let failed = |problem: &dyn std::fmt::Display| {
        RestError::Failed(format!(
            "cannot save the profile in {}: {problem}; check the permissions of the folder",
            file.display()
        ))
    };
    // A link to a file in another folder remains a link.
    let target = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
    let old_text = match std::fs::read_to_string(&target) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(&error)),
    };
    let mut document: toml_edit::DocumentMut = old_text
        .parse()
        .map_err(|_| failed(&"the file is not valid TOML"))?;
    let profiles = document
        .entry("profiles")
        .or_insert_with(|| {
            let mut table = toml_edit::Table::new();
            table.set_implicit(true);
            toml_edit::Item::Table(table)
        })
        .as_table_like_mut()
        .ok_or_else(|| failed(&"`profiles` is not a table"))?;
    let mut table = profile.to_table();
    if let Some(old_table) = profiles.get(name).and_then(toml_edit::Item::as_table) {
        // The comment before the profile, and its place in the file.
        *table.decor_mut() = old_table.decor().clone();
        table.set_position(old_table.position());
    }
    profiles.insert(name, toml_edit::Item::Table(table));
    write_private_file(&target, &document.to_string()).map_err(|error| failed(&error))
}

/// Replaces a file. Only the owner can read the new file.
fn write_private_file(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let new_file = file.with_extension(format!("toml.{}.new", std::process::id()));
    let write = || {
        let mut out = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new_file)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&new_file, file)
    };
    write().inspect_err(|_| {
        // The first error is reported.
        let _ = std::fs::remove_file(&new_file);
    })
}

impl Profile {
    fn to_table(&self) -> toml_edit::Table {
        let path_text = |path: &PathBuf| path.display().to_string();
        let mut table = toml_edit::Table::new();
        table["url"] = toml_edit::value(self.url.as_str());
        let fields = [
            ("org_id", self.org_id.clone()),
            ("key_name", self.key_name.clone()),
            (
                "key",
                self.key.as_ref().map(|key| key.expose_secret().to_owned()),
            ),
            ("key_file", self.key_file.as_ref().map(path_text)),
            ("ca_file", self.ca_file.as_ref().map(path_text)),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                table[name] = toml_edit::value(value);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile_file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, file)
    }

    const PROFILES: &str = "[profiles.stage]\nurl = \"https://stage.example\"\nkey = \"stage-key\"\n\
                            key_name = \"support\"\norg_id = \"7\"\n\
                            [profiles.test]\nurl = \"http://test.example\"\nkey_file = \"/k\"\n";

    #[test]
    fn a_profile_is_found_by_its_name() {
        let (_folder, file) = profile_file(PROFILES, 0o600);
        let profile = require_profile(&file, "stage").unwrap();
        assert_eq!(profile.url, "https://stage.example");
        assert_eq!(profile.key.unwrap().expose_secret(), "stage-key");
        assert_eq!(profile.key_name.as_deref(), Some("support"));
        assert!(find_profile(&file, "default").unwrap().is_none());
        let missing_file = file.with_extension("none");
        assert!(find_profile(&missing_file, "default").unwrap().is_none());
    }

    #[test]
    fn the_error_for_a_missing_profile_lists_the_profiles() {
        let (_folder, file) = profile_file(PROFILES, 0o600);
        let error = require_profile(&file, "prod").unwrap_err();
        assert!(matches!(error, RestError::Usage(_)));
        assert!(error.to_string().contains("stage, test"), "{error}");
    }

    #[test]
    fn a_key_that_other_users_can_read_is_rejected() {
        let (_folder, file) = profile_file(PROFILES, 0o644);
        let error = require_profile(&file, "stage").unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        // The other profile contains only the path of its key.
        assert!(require_profile(&file, "test").is_ok());
    }

    #[test]
    fn the_error_for_an_invalid_file_names_the_line_but_not_the_key() {
        let text = "[profiles.a]\nurl = \"http://a\"\nkey = \"secret-text\" x\n";
        let (_folder, file) = profile_file(text, 0o600);
        let error = find_profile(&file, "a").unwrap_err().to_string();
        assert!(error.contains("line 3"), "{error}");
        assert!(!error.contains("secret-text"), "{error}");
        let (_folder, file) = profile_file("[profiles.a]\nurls = \"x\"\n", 0o600);
        let error = find_profile(&file, "a").unwrap_err().to_string();
        assert!(error.contains("urls"), "{error}");
    }

    #[test]
    fn a_saved_profile_replaces_only_the_profile_with_its_name() {
        let text = format!("# a comment\n{PROFILES}");
        let (_folder, file) = profile_file(&text, 0o644);
        let profile = Profile {
            url: "https://new.example".to_owned(),
            key: Some(SecretString::from("new \"key\"")),
            key_file: None,
            key_name: Some("b".to_owned()),
            org_id: None,
            ca_file: None,
        };
        save_profile(&file, "stage", &profile).unwrap();
        save_profile(&file, "a.b", &profile).unwrap();
        for name in ["stage", "a.b"] {
            let saved = require_profile(&file, name).unwrap();
            assert_eq!(saved.url, "https://new.example");
            assert_eq!(saved.key.unwrap().expose_secret(), "new \"key\"");
            assert_eq!(saved.org_id, None);
        }
        assert_eq!(
            require_profile(&file, "test").unwrap().url,
            "http://test.example"
        );
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("# a comment\n"), "{text}");
        assert!(!text.contains("stage-key"), "{text}");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_invalid_file_is_not_replaced() {
        let (_folder, file) = profile_file("profiles = 1\n", 0o600);
        let profile = Profile {
            url: "https://new.example".to_owned(),
            key: None,
            key_file: None,
            key_name: None,
            org_id: None,
            ca_file: None,
        };
        assert!(save_profile(&file, "a", &profile).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "profiles = 1\n");
    }
}
