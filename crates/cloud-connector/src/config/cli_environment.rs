//! The environment variables of the commands that use the REST API.
//!
//! Their names have one underscore after `CLOUD_CONNECTOR`. The variables with two underscores are
//! settings of the connector.

use std::path::PathBuf;

use service::settings::SecretString;

/// Environment variables of the commands that use the REST API. An empty variable counts as unset.
#[derive(Debug, Clone, Default)]
pub struct CliEnvironment {
    /// `CLOUD_CONNECTOR_URL`: URL of the REST API.
    pub url: Option<String>,
    /// `CLOUD_CONNECTOR_KEY`: the API key.
    pub key: Option<SecretString>,
    /// `CLOUD_CONNECTOR_KEY_NAME`: name of the API key.
    pub key_name: Option<String>,
    /// `CLOUD_CONNECTOR_ORG`: organization of commands that show one organization.
    pub org_id: Option<String>,
    /// `CLOUD_CONNECTOR_PROFILE`: name of the profile.
    pub profile: Option<String>,
    /// File with the profiles: `cloud-connector/config.toml` in `XDG_CONFIG_HOME` or in
    /// `~/.config`. `None` if the user has no home folder.
    pub profile_file: Option<PathBuf>,
    /// Whether `NO_COLOR` forbids colors (<https://no-color.org>).
    pub forbids_color: bool,
}

/// Reads the environment variables of the commands that use the REST API.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "this module reads the environment"
)]
pub fn cli_environment() -> CliEnvironment {
    from_variables(|name| {
        let value = std::env::var_os(name)?.to_string_lossy().into_owned();
        (!value.is_empty()).then_some(value)
    })
}

/// Like [`cli_environment`], but `variable` returns the value of a variable.
fn from_variables(variable: impl Fn(&str) -> Option<String>) -> CliEnvironment {
    let config_home = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".config")));
    CliEnvironment {
        url: variable("CLOUD_CONNECTOR_URL"),
        key: variable("CLOUD_CONNECTOR_KEY").map(SecretString::from),
        key_name: variable("CLOUD_CONNECTOR_KEY_NAME"),
        org_id: variable("CLOUD_CONNECTOR_ORG"),
        profile: variable("CLOUD_CONNECTOR_PROFILE"),
        profile_file: config_home.map(|folder| folder.join("cloud-connector/config.toml")),
        forbids_color: variable("NO_COLOR").is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> CliEnvironment {
        from_variables(|name| {
            let variable = variables.iter().find(|(other, _)| *other == name);
            variable.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_profile_file_is_in_the_configuration_folder_of_the_user() {
        let file = |variables| environment(variables).profile_file;
        assert_eq!(file(&[]), None);
        let expected = PathBuf::from("/home/a/.config/cloud-connector/config.toml");
        assert_eq!(file(&[("HOME", "/home/a")]), Some(expected.clone()));
        let relative = [("HOME", "/home/a"), ("XDG_CONFIG_HOME", "x")];
        assert_eq!(file(&relative), Some(expected));
        let expected = PathBuf::from("/x/cloud-connector/config.toml");
        let both = [("HOME", "/home/a"), ("XDG_CONFIG_HOME", "/x")];
        assert_eq!(file(&both), Some(expected));
    }

    #[test]
    fn debug_output_does_not_contain_the_key() {
        let environment = environment(&[("CLOUD_CONNECTOR_KEY", "a-secret-key")]);
        assert!(environment.key.is_some());
        assert!(!format!("{environment:?}").contains("a-secret-key"));
    }
}
