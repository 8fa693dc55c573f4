//! Checks settings of the PostgreSQL server, for the `doctor` command.

use crate::connect::connect;
use crate::driver::{self, pg_query};
use crate::guarded_pool::{ConnectionGuard, GuardedConnection};
use crate::settings::PostgresSettings;
use store::Result;
use store::sql::ColumnReader as _;

store::statements! {
    SERVER_SETTINGS = "
        SELECT name, setting,
               CASE unit WHEN 'kB' THEN 1 WHEN '8kB' THEN 8 WHEN 'MB' THEN 1024 WHEN 's' THEN 1 END
                   * CASE WHEN unit IS NOT NULL THEN setting::bigint END AS scaled_value
          FROM pg_settings";

    /// An estimate, because counting the rows would take long.
    ESTIMATED_CONNECTIONS = "
        SELECT GREATEST(reltuples, 0)::bigint AS count FROM pg_class
         WHERE oid = to_regclass('connections')";
}

/// The settings of these names must be on. Otherwise, a crash of the server loses messages that were
/// acknowledged.
const DURABILITY_SETTINGS: [&str; 3] = ["fsync", "full_page_writes", "synchronous_commit"];

/// With fewer connections, the default settings of the server are sufficient.
const MIN_FLEET_CONNECTIONS: i64 = 100_000;

/// A setting of the server with a minimum value for a fleet.
struct MinimumValue {
    name: &'static str,
    /// In kilobytes or seconds.
    minimum: i64,
    recommended: &'static str,
    effect: &'static str,
}

const MINIMUM_VALUES: [MinimumValue; 3] = [
    MinimumValue {
        name: "shared_buffers",
        minimum: 1024 * 1024,
        recommended: "a quarter of the memory of the server",
        effect: "the indexes of a fleet do not fit, and each batch reads pages from the disk",
    },
    MinimumValue {
        name: "max_wal_size",
        minimum: 4 * 1024 * 1024,
        recommended: "8GB",
        effect: "a reconnect storm starts checkpoints often, which delays batches",
    },
    MinimumValue {
        name: "checkpoint_timeout",
        minimum: 15 * 60,
        recommended: "15min",
        effect: "PostgreSQL writes whole pages to the WAL more often",
    },
];

/// A setting of the server.
struct ServerSetting {
    name: String,
    value: String,
    /// The value in kilobytes or seconds. `None` if the setting has no unit.
    scaled_value: Option<i64>,
}

/// Returns the problems with the settings of the server. Each problem has the form `problem; fix`.
///
/// # Errors
/// When the server does not respond.
pub async fn check_server_settings(settings: &PostgresSettings) -> Result<Vec<String>, String> {
    let connection = connect(settings).await;
    let connection = connection.map_err(|error| error.to_string())?;
    let mut connection = GuardedConnection::detached(connection, ConnectionGuard::new(settings));
    let problems = find_problems(&mut connection).await;
    connection.close().await;
    problems.map_err(|error| error.to_string())
}

async fn find_problems(connection: &mut GuardedConnection) -> Result<Vec<String>> {
    let rows = driver::fetch_all(&mut *connection, pg_query(&SERVER_SETTINGS.with([]))).await?;
    let mut server_settings = Vec::with_capacity(rows.len());
    for row in rows {
        server_settings.push(ServerSetting {
            name: row.text("name")?,
            value: row.text("setting")?,
            scaled_value: row.optional_integer("scaled_value")?,
        });
    }
    let query = pg_query(&ESTIMATED_CONNECTIONS.with([]));
    let rows = driver::fetch_all(connection, query).await?;
    let count = rows.first().map(|row| row.optional_integer("count"));
    let connections = count.transpose()?.flatten().unwrap_or(0);
    Ok(problems(&server_settings, connections))
}

fn problems(server_settings: &[ServerSetting], connections: i64) -> Vec<String> {
    let find = |name: &str| server_settings.iter().find(|setting| setting.name == name);
    let mut problems = Vec::new();
    for name in DURABILITY_SETTINGS {
        if find(name).is_some_and(|setting| setting.value == "off") {
            problems.push(format!(
                "{name} is off, so a crash of the server loses acknowledged messages; set it to on"
            ));
        }
    }
    if connections < MIN_FLEET_CONNECTIONS {
        return problems;
    }
    for rule in MINIMUM_VALUES {
        let value = find(rule.name).and_then(|setting| setting.scaled_value);
        if value.is_some_and(|value| value < rule.minimum) {
            let MinimumValue {
                name,
                recommended,
                effect,
                ..
            } = rule;
            problems.push(format!(
                "{name} is low, so {effect}; set it to {recommended}"
            ));
        }
    }
    if find("wal_compression").is_some_and(|setting| setting.value == "off") {
        problems.push(
            "wal_compression is off, so a reconnect storm writes much more to the WAL; set it to lz4"
                .to_owned(),
        );
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: &str, scaled_value: Option<i64>) -> ServerSetting {
        ServerSetting {
            name: name.to_owned(),
            value: value.to_owned(),
            scaled_value,
        }
    }

    #[test]
    fn unsafe_settings_are_always_reported_and_slow_settings_only_for_a_fleet() {
        let server_settings = [
            setting("fsync", "off", None),
            setting("synchronous_commit", "on", None),
            setting("shared_buffers", "16384", Some(131_072)),
            setting("max_wal_size", "8192", Some(8_388_608)),
            setting("checkpoint_timeout", "300", Some(300)),
            setting("wal_compression", "off", None),
        ];
        let names = |connections| -> Vec<String> {
            let problems = problems(&server_settings, connections);
            let first_words = problems.iter().map(|text| text.split(' ').next().unwrap());
            first_words.map(str::to_owned).collect()
        };
        assert_eq!(names(99_999), ["fsync"]);
        let expected = [
            "fsync",
            "shared_buffers",
            "checkpoint_timeout",
            "wal_compression",
        ];
        assert_eq!(names(100_000), expected);
    }
}
