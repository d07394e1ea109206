#!/usr/bin/env bash
# A replica set of three MongoDB servers in Docker containers, for test_fail_over.py:
#   mongodb_set.sh start | uri | kill | step_down | partition | freeze | heal | stop
set -euo pipefail

image=${MONGODB_IMAGE:-mongo:7}
network=headrace-mongodb
members=(1 2 3)

name() { echo "$network-$1"; }
address() { echo "172.31.77.1$1"; }

# on MEMBER SCRIPT: what the shell of a member prints.
on() { timeout 20 docker exec "$(name "$1")" mongosh --quiet --norc --eval "$2"; }

# until_true MESSAGE COMMAND...: tries for two minutes.
until_true() {
  local message=$1 deadline=$((SECONDS + 120))
  shift
  until "$@"; do
    if ((SECONDS > deadline)); then
      echo "mongodb_set.sh: $message" >&2
      exit 1
    fi
    sleep 0.5
  done
}

answers() { on "$1" 'db.hello().ok' >/dev/null 2>&1; }

# The number of the primary.
primary() {
  local member
  for member in "${members[@]}"; do
    if [[ $(on "$member" 'db.hello().isWritablePrimary' 2>/dev/null) == true ]]; then
      echo "$member"
      return
    fi
  done
  return 1
}

is_whole() {
  local found
  found=$(primary) && [[ $(on "$found" 'rs.status().members.every(m => m.state === 1 || m.state === 2)' 2>/dev/null) == true ]]
}

start() {
  local member
  docker network create --subnet 172.31.77.0/24 "$network" >/dev/null
  for member in "${members[@]}"; do
    docker run --detach --name "$(name "$member")" --network "$network" --ip "$(address "$member")" "$image" \
      mongod --replSet rs --bind_ip_all >/dev/null
  done
  for member in "${members[@]}"; do
    until_true "member $member does not answer" answers "$member"
  done
  on 1 "rs.initiate({_id: 'rs', members: [1, 2, 3].map(i => ({_id: i, host: '172.31.77.1' + i + ':27017'}))}).ok" >/dev/null
  until_true "no primary was elected" is_whole
}

heal() {
  local member state
  for member in "${members[@]}"; do
    state=$(docker inspect --format '{{.State.Status}} {{len .NetworkSettings.Networks}}' "$(name "$member")")
    case $state in
      paused*) docker unpause "$(name "$member")" >/dev/null ;;
      exited*) docker start "$(name "$member")" >/dev/null ;;
      *\ 0) docker network connect --ip "$(address "$member")" "$network" "$(name "$member")" ;;
    esac
  done
  until_true "the set did not become whole" is_whole
}

case ${1:-} in
  start) start ;;
  uri) echo "mongodb://$(address 1),$(address 2),$(address 3)/?replicaSet=rs" ;;
  kill) docker kill --signal KILL "$(name "$(primary)")" >/dev/null ;;
  step_down) on "$(primary)" 'rs.stepDown(20, 10)' >/dev/null 2>&1 || true ;;
  partition) docker network disconnect "$network" "$(name "$(primary)")" ;;
  freeze) docker pause "$(name "$(primary)")" >/dev/null ;;
  heal) heal ;;
  stop)
    for member in "${members[@]}"; do docker rm --force --volumes "$(name "$member")" >/dev/null 2>&1 || true; done
    docker network rm "$network" >/dev/null 2>&1 || true
    ;;
  *)
    sed -n 2,3p "$0" >&2
    exit 2
    ;;
esac
