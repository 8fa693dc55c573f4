//! Named profiles in `~/.config/cloud-connector/config.toml`: addresses and API keys of connectors.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::RestError;
use service::settings::SecretString;

/// Name of the profile that commands use without `--profile`.
pub(super) const DEFAULT_PROFILE: &str = "default";

/// Address and API key of a connector.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
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
        "there is no profile {name:?} in {} ({existing}); add [profiles.{name}] with url, key_name \
         and key to the file, or choose another profile",
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

#[cfg(test)]
mod tests {
    use super::*;
    use service::settings::ExposeSecret as _;

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
}
