#!/usr/bin/env bash
# preStop of an Envoy: tell everybody to go elsewhere, and wait until nobody is left or time is up.
#
#   drain-envoy.sh ADMIN_PORT LAME_DUCK_S DEADLINE_S
#
# From the first moment /ready says 503 and every answer carries "connection: close" (GOAWAY for HTTP/2), so that
# load balancers and callers with open connections leave. New connections are taken all the while: somebody may
# not have heard yet. The listeners stay, for an Envoy with a drain time of zero would cut what runs.
# Needs bash and sleep, and nothing else that an Envoy's image may not have.
set -u

port=$1 lame_duck_s=$2 deadline_s=$3

ask() { # METHOD PATH: the answer on stdout
  local line
  exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf '%s %s HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  while IFS= read -r line <&3; do printf '%s\n' "${line%$'\r'}"; done
  exec 3>&- 3<&-
}

under_way() { # how many requests of callers this Envoy holds
  local line count=0 seen=no
  while IFS= read -r line; do
    case $line in
      http.admin.* | http.health.*) ;; # asked by this script, probes and scrapers
      http.*.downstream_rq_active:\ *) count=$((count + ${line##*: })) seen=yes ;;
    esac
  done < <(ask GET '/stats?filter=downstream_rq_active')
  # Nothing to count: no listener yet, or nobody answers. Neither holds anything.
  [ "$seen" = yes ] && printf '%s\n' "$count" || printf '0\n'
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
