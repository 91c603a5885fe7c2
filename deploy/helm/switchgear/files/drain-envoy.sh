#!/usr/bin/env bash
# preStop of an Envoy: send callers elsewhere, and wait until no request is left or the deadline.
#
#   drain-envoy.sh ADMIN_PORT LAME_DUCK_S DEADLINE_S
#
# At once /ready answers 503 and every response has "connection: close" (GOAWAY in HTTP/2), so load balancers and
# callers leave. New connections are still accepted, because some callers learn late. Listeners stay: with a drain
# time of zero, removing them would cut running requests. Needs only bash and sleep.
set -u

port=$1 lame_duck_s=$2 deadline_s=$3

ask() { # METHOD PATH; writes the answer to stdout
  local line
  exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf '%s %s HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  while IFS= read -r line <&3; do printf '%s\n' "${line%$'\r'}"; done
  exec 3>&- 3<&-
}

under_way() { # requests of callers in flight
  local line count=0 counted=no
  while IFS= read -r line; do
    case $line in
      http.admin.* | http.health.*) ;; # this script, probes and scrapers
      http.*.downstream_rq_active:\ *) count=$((count + ${line##*: })) counted=yes ;;
    esac
  done < <(ask GET '/stats?filter=downstream_rq_active')
  # No counter: no listener yet, or no answer. No requests either way.
  [ "$counted" = yes ] && printf '%s\n' "$count" || printf '0\n'
}

ask POST /healthcheck/fail >/dev/null || {
  echo "drain-envoy: no Envoy answers on port $port" >&2
  exit 1
}
while [ "$SECONDS" -lt "$deadline_s" ]; do
  if [ "$SECONDS" -ge "$lame_duck_s" ] && [ "$(under_way)" = 0 ]; then
    echo "drain-envoy: empty after $SECONDS s"
    exit 0
  fi
  sleep 1
done
echo "drain-envoy: $(under_way) requests left after $SECONDS s" >&2
exit 1
